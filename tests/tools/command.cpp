#include "tests/tools/command.h"

#include "src/device/doubts.h"
#include "src/device/profile.h"
#include "src/device/profile_rates.h"

namespace sluice {

std::string CommandTest::read(const std::filesystem::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

void CommandTest::write(const std::string& name, const std::string& text) const {
  std::ofstream(folder_ / name) << text;
}

Finished CommandTest::sluice(const std::string& arguments) const {
  const std::string command = "cd " + path("") + " && XDG_CACHE_HOME=" + path("cache") + " " SLUICE_BINARY " " +
                              arguments + " >" + path(".out") + " 2>" + path(".err") + " </dev/null";
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(path(".out")), read(path(".err"))};
}

void CommandTest::expect_refused(const std::string& arguments, const std::string& what) const {
  const Finished f = sluice(arguments);
  EXPECT_EQ(f.status, 2) << arguments << "\n" << f.err;
  EXPECT_EQ(f.out, "") << arguments;
  EXPECT_EQ(std::count(f.err.begin(), f.err.end(), '\n'), 1) << arguments << "\n" << f.err;
  EXPECT_EQ(f.err.rfind("sluice", 0), 0u) << f.err;
  EXPECT_NE(f.err.find(what), std::string::npos) << arguments << "\n" << f.err;
}

void CommandTest::write_profile(const std::string& directory) const {
  HardwareProfile profile;
  profile.machine = machine_id();
  profile.measures_ops = false;  // a third of what a command of a few steps takes
  for (const std::size_t striped : {1u, 2u}) profile.drives[drive_key(std::vector(striped, directory))] = {};
  const std::string file = path("cache/sluice/profile.json");
  ASSERT_TRUE(save_profile(file, profile).ok());
  // Runs contradict these rates. Measured again they would be in the next command of each test, for seconds.
  Doubts doubts;
  for (const std::string& name : rate_names()) doubts.all()[name].measured_again = Doubts::measured_again_max;
  ASSERT_TRUE(save_doubts(file, doubts).ok());
}

void CommandTest::set_up_training() const {
  write_profile(path(""));
  std::string text;
  while (text.size() < 20000) text += "the quick brown fox jumps over the lazy dog; ";
  write("text", text);
  std::filesystem::create_directory(path("nvme"));
}

}  // namespace sluice
