// Machines that cannot do what is asked of them say so in one line, before anything is left behind.
#include <filesystem>

#include "src/device/device.h"
#include "tests/equivalence/runs.h"
#include "tests/machine/card.h"

namespace sluice::test {
namespace {

class Refusals : public CardTest {
 protected:
  static void expect_refused(const Error& error, const std::string& what) {
    EXPECT_EQ(error.code, ErrorCode::bad_request) << error.message;
    EXPECT_NE(error.message.find(what), std::string::npos) << error.message;
    EXPECT_EQ(error.message.find('\n'), std::string::npos) << error.message;
  }
  static void expect_no_device(const simt::Card& card, const std::string& name, const std::string& what) {
    put_in(card);
    const auto device = Device::open(name);
    ASSERT_FALSE(device.ok()) << what;
    expect_refused(device.error(), "--device " + name + ": ");
    expect_refused(device.error(), what);
  }
  /// A run that comes to nothing, and leaves nothing on the drive.
  void expect_no_run(const simt::Card& card, const std::string& what) {
    put_in({});
    RunConfig c = bench_.config(1, false, Dtype::bf16, 1);
    c.device = "cuda";
    Schedule s;
    UnitChoice unit;
    unit.state_home = unit.parameter_home = Place::nvme;
    s.units.assign(4, unit);
    const auto prepared = prepared_with(c, s);
    ASSERT_TRUE(prepared);
    put_in(card);
    Outcome out;
    Recorder recorder(out);
    const auto trainer = Trainer::create(*prepared, recorder);
    ASSERT_FALSE(trainer.ok()) << what;
    expect_refused(trainer.error(), what);
    EXPECT_TRUE(std::filesystem::is_empty(bench_.path("drive")));
  }

  Bench bench_;
};

TEST_F(Refusals, OfDevicesThatAreNotThere) {
  expect_no_device({.driver = 0}, "cuda", "no CUDA driver is installed");
  expect_no_device({.driver = 11080}, "cuda", "the CUDA driver is for 11.8, this program needs one for 12.0 or newer");
  expect_no_device({.devices = 0}, "cuda", "no CUDA-capable device is detected");
  expect_no_device({.devices = 2}, "cuda:2", "there is no device cuda:2; the driver knows 2 (cuda:0 to cuda:1)");
  expect_no_device({.capability = 75}, "cuda:0", "has compute capability 7.5, 8.0 is needed");
  put_in({.devices = 2});
  EXPECT_EQ((*Device::open("cuda:1"))->description(), "model of a CUDA device (cuda:1)");
}

TEST_F(Refusals, OfRunsThatTheMachineHasNoRoomFor) {
  constexpr std::uint64_t mib = 1u << 20;
  expect_no_run({.memory = 20 * mib},
                "are free (of 20 MiB), 640 KiB of them for code that is loaded later; give a smaller --device-memory");
  expect_no_run({.taken = simt::Card().memory - 20 * mib}, "20 MiB are free");
  expect_no_run({.lockable = 1000}, "of host memory can not be locked for the device");
}

// Kernels come to the device when they are first launched: an arena that takes all there is would fail then.
TEST_F(Refusals, OfTheRoomThatCodeNeeds) {
  constexpr std::uint64_t mib = 1u << 20;
  put_in({.memory = 512 * mib, .taken = 256 * mib});
  const auto device = Device::open("cuda");
  ASSERT_TRUE(device.ok());
  EXPECT_EQ(*(*device)->free_bytes(), 240 * mib);
  const auto all = (*device)->memory().allocate(240 * mib + 1);
  ASSERT_FALSE(all.ok());
  expect_refused(all.error(), "256 MiB are free (of 512 MiB), 16 MiB of them for code that is loaded later");
  const auto most = (*device)->memory().allocate(240 * mib);
  ASSERT_TRUE(most.ok()) << most.error().message;
  (*device)->memory().free(*most, 240 * mib);
}

}  // namespace
}  // namespace sluice::test
