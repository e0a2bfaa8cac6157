// Host memory that is registered in pieces, as arenas of hundreds of GiB are. The model takes each piece for itself: a
// copy that reached from one into the next would be refused.
#include "src/device/cuda/device.h"
#include "tests/equivalence/runs.h"
#include "tests/machine/card.h"

namespace sluice::test {
namespace {

class Pieces : public CardTest {
 protected:
  ~Pieces() override { pinned_piece_bytes() = whole_; }
  Bench bench_;

 private:
  const std::uint64_t whole_ = pinned_piece_bytes();
};

TEST_F(Pieces, ChangeNoBit) {
  RunConfig c = bench_.config(1, false, Dtype::bf16, 2);
  c.device = "cuda";
  Schedule s;
  UnitChoice unit;
  unit.state_home = unit.parameter_home = Place::host;
  unit.saved = Saved::host;
  s.units.assign(4, unit);
  const auto prepared = prepared_with(c, s);
  ASSERT_TRUE(prepared);
  const Outcome whole = run(*prepared);
  pinned_piece_bytes() = 1u << 14;
  const Outcome pieces = run(*prepared);
  ASSERT_EQ(pieces.losses.size(), 2u);
  expect_same(whole, pieces);
}

TEST_F(Pieces, AreAllLockedOrNone) {
  pinned_piece_bytes() = 1u << 14;
  auto device = CudaDevice::open(0);
  ASSERT_TRUE(device.ok());
  auto pages = Pages::make(1u << 20);
  ASSERT_TRUE(pages.ok());
  put_in({.lockable = 1u << 19});
  const Status refused = (*device)->pin(pages->data(), pages->bytes());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::bad_request) << refused.error().message;
  put_in({});
  const Status taken = (*device)->pin(pages->data(), pages->bytes());  // nothing of it is still registered
  EXPECT_TRUE(taken.ok()) << taken.error().message;
  (*device)->unpin(pages->data(), pages->bytes());
}

}  // namespace
}  // namespace sluice::test
