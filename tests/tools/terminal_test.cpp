// What is drawn on a terminal: widths, and what of a step is left where there is little room.
#include "tools/terminal.h"

#include <fcntl.h>
#include <pty.h>
#include <unistd.h>

#include "run_command.h"
#include "tools/step_line.h"

namespace sluice {
namespace {

using tools::fit_line;
using tools::step_forms;
using tools::text_columns;

constexpr std::uint64_t gib = 1ull << 30;

StepRecord record(std::int64_t step, double loss, double rate, double device, double host, double nvme) {
  StepRecord r;
  r.step = step;
  r.loss = loss;
  r.tokens_per_second = rate;
  r.efficiency = 0.934;
  r.device_peak_bytes = static_cast<std::uint64_t>(device * gib);
  r.host_peak_bytes = static_cast<std::uint64_t>(host * gib);
  r.nvme_peak_bytes = static_cast<std::uint64_t>(nvme * gib);
  return r;
}

void expect_in_order(const std::string& line, std::size_t columns, const std::vector<std::string>& parts) {
  EXPECT_LE(text_columns(line), columns) << line;
  std::size_t at = 0;
  for (const std::string& part : parts) {
    const std::size_t found = line.find(part, at);
    EXPECT_NE(found, std::string::npos) << part << " in\n" << line;
    if (found != std::string::npos) at = found + part.size();
  }
}

TEST(Terminal, StepLinesKeepWhatMatters) {
  const auto forms = step_forms(record(12, 5.5, 1234, 1.2, 3.4, 20), 200);
  const auto at = [&](std::size_t columns) { return fit_line(forms, 0.06, columns); };
  expect_in_order(at(60), 60, {"12/200", "loss 5.5000", "1.23k tok/s", "dev 1.2G host 3.4G nvme 20G"});
  expect_in_order(at(80), 80, {"step 12/200", "loss 5.5000", "1.23k tok/s", "dev 1.2G host 3.4G nvme 20G", "eff 0.93"});
  expect_in_order(at(100), 100, {"[", "]", "step 12/200", "1.23k tok/s", "dev 1.2G host 3.4G nvme 20G", "eff 0.93"});
  expect_in_order(at(200), 200,
                  {"[=>", "] step 12/200", "loss 5.5000", "1.23k tokens/s", "efficiency 0.93", "device 1.20 GiB",
                   "host 3.40 GiB", "nvme 20 GiB"});
  expect_in_order(at(20), 20, {"12/200", "loss 5.5000"});
  EXPECT_EQ(at(4), "12/2");
}

// A long run of a large model: 80 columns still have all four, 60 have no memory.
TEST(Terminal, LongStepLinesFit) {
  const auto forms = step_forms(record(123456, 11.98765, 123456, 80, 1023, 40960), 1000000);
  for (const std::size_t columns : {80u, 100u, 200u})
    expect_in_order(fit_line(forms, 0.1, columns), columns,
                    {"123456/1000000", "loss 11.98", "123", "tok", "80", "nvme 40"});
  expect_in_order(fit_line(forms, 0.1, 60), 60, {"123456/1000000", "loss 11.98", "123k tok/s"});
  // A tier that is not used takes no room.
  const auto two = step_forms(record(1, 2, 3, 0.1, 0.01, 0), 10);
  EXPECT_EQ(fit_line(two, 0.1, 70), "step 1/10  loss 2.0000  3.00 tok/s  dev 102M host 10M  eff 0.93");
}

TEST(Terminal, WidthsAreCharacters) {
  EXPECT_EQ(text_columns("naïve"), 5u);
  EXPECT_EQ(text_columns("日本語"), 3u);
  EXPECT_EQ(text_columns("\xf0\x9f\x98\x80"), 1u);
  EXPECT_EQ(text_columns("\xff\xc3"), 2u);  // no UTF-8
  EXPECT_EQ(tools::cut_text("naïve", 3), "naï");
  EXPECT_EQ(tools::cut_text("日本語", 2), "日本");
  EXPECT_EQ(tools::cut_text("日本語", 9), "日本語");
  EXPECT_EQ(fit_line(std::vector<std::string>{"éééé"}, -1, 4), "éééé");
  EXPECT_EQ(fit_line(std::vector<std::string>{"éééé"}, 0.5, 10), "éééé");
  EXPECT_EQ(fit_line(std::vector<std::string>{"éééé"}, 0.5, 17), "[=====>    ] éééé");
  tools::Table table({"é", "b"});
  table.add({"ee", "日"});
  EXPECT_EQ(table.text(), "é   b\nee  日\n");
}

class OnTerminal : public RunCommandTest {};

TEST_F(OnTerminal, TrainDrawsWithin80Columns) {
  const std::string command =
      "XDG_CACHE_HOME=" + path("cache") + " exec " SLUICE_BINARY " " + options() + drive() + run("run") + "--steps 3";
  winsize size{};
  size.ws_row = 24;
  size.ws_col = 80;
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
  ASSERT_GE(child, 0);
  if (child == 0) {
    execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  std::string drawn;
  char part[4096];
  for (ssize_t n = 0; (n = ::read(terminal, part, sizeof part)) > 0;) drawn.append(part, static_cast<std::size_t>(n));
  close(terminal);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << drawn;
  // The last state of the line that is rewritten.
  const std::string erase = "\r\x1b[2K";
  const std::size_t last = drawn.rfind(erase);
  ASSERT_NE(last, std::string::npos) << drawn;
  const std::string line = drawn.substr(last + erase.size(), drawn.find('\r', last + 1) - last - erase.size());
  expect_in_order(line, 79, {"step 3/3", "loss ", "tok/s", "dev ", "host ", "nvme "});
}

}  // namespace
}  // namespace sluice
