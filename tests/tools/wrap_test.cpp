// Lines of --help.
#include "tools/wrap.h"

#include <gtest/gtest.h>

#include "command.h"

namespace sluice {
namespace {

using tools::wrapped;
using tools::wrapped_footer;

TEST(Wrap, BreaksAtSpaces) {
  EXPECT_EQ(wrapped("one two three", 7), "one two\nthree");
  EXPECT_EQ(wrapped("one two three", 8), "one two\nthree");
  EXPECT_EQ(wrapped("one two three", 13), "one two three");
  EXPECT_EQ(wrapped("a-word-that-is-long b c", 5), "a-word-that-is-long\nb c");
  EXPECT_EQ(wrapped("a\nb c", 3), "a\nb c");
  EXPECT_EQ(wrapped("", 10), "");
}

TEST(Wrap, CommandsBelowTheOptionsStay) {
  const std::string command =
      "  sluice train --model llama-125m --data book.txt --run out --seq-schedule 256:500,1024:*   # x";
  const std::string full(75, 'w');
  EXPECT_EQ(wrapped_footer("Examples:\n" + command + "\n" + full + "\nis full.\nA line.\nNext.", 80),
            "Examples:\n" + command + "\n" + full + " is\nfull.\nA line.\nNext.");
  EXPECT_EQ(wrapped_footer(full + "\nand goes on", 90), full + " and goes on");
  EXPECT_EQ(wrapped_footer("a\n\nb\n", 80), "a\n\nb\n");
}

TEST_F(CommandTest, HelpFitsATerminal) {
  for (const char* command : {"", "train", "plan", "eval", "generate", "report", "data tokenize", "bench io",
                              "bench collective", "checkpoint reshape", "checkpoint export"}) {
    const Finished help = sluice(std::string(command) + " --help");
    ASSERT_EQ(help.status, 0);
    std::istringstream lines(help.out);
    // Examples are as long as they are.
    for (std::string line; std::getline(lines, line);)
      EXPECT_TRUE(line.size() <= 80 || line.find(" sluice ") != std::string::npos || line.starts_with("      --"))
          << command << ": " << line;
  }
}

}  // namespace
}  // namespace sluice
