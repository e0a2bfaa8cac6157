// What is no text is refused by what it looks like, and no text is.
#include "io/tokens/text_check.h"

#include <random>

#include "token_support.h"

namespace sluice {
namespace {

using namespace std::string_literals;

std::string refusal(const std::string& bytes) {
  const Status status = check_text(bytes, "name");
  if (status.ok()) return "";
  EXPECT_EQ(status.error().code, ErrorCode::bad_request);
  EXPECT_EQ(status.error().message.find('\n'), std::string::npos);
  return status.error().message;
}

TEST(TextCheck, NamesWhatItLooksLike) {
  const auto looks_like = [](const std::string& bytes, const std::string& what) {
    const std::string message = refusal(bytes);
    EXPECT_NE(message.find("name is no text: it looks like " + what), std::string::npos) << what << ": " << message;
  };
  const auto padded = [](std::string begin) { return begin.append(100, '\0'); };
  looks_like(padded("\x7f"
                    "ELF\x02\x01"s),
             "a program (ELF)");
  looks_like(padded("\x40\0\0\0\0\0\0\0{\"a\":"s), "weights (safetensors)");
  looks_like(padded("\x89HDF\r\n\x1a\n"s), "an HDF5 file");
  looks_like(padded("PK\x03\x04"s), "a zip archive");
  looks_like(padded("\x89PNG\r\n\x1a\n"s), "a PNG image");
  looks_like(padded("\xfd"
                    "7zXZ\0"s),
             "xz data");
  looks_like(padded("PAR1"s), "a Parquet file");
  looks_like(padded("GGUF"s), "weights (GGUF)");
  looks_like("some words\0and more"s, "binary data (byte 10 is 0)");
  std::string random(2000, '\0');
  std::mt19937 seed(7);
  for (char& c : random) c = static_cast<char>(1 + seed() % 255);
  looks_like(random, "binary data;");
}

TEST(TextCheck, WideTextIsNamed) {
  EXPECT_NE(refusal("\xff\xfe"s + "a\0b\0"s).find("is UTF-16 text"), std::string::npos);
  EXPECT_NE(refusal("\xfe\xff"s + "\0a\0b"s).find("iconv -f UTF-16 -t UTF-8"), std::string::npos);
  EXPECT_NE(refusal("\xff\xfe\0\0a\0\0\0"s).find("is UTF-32 text"), std::string::npos);
}

TEST(TextCheck, TextsPass) {
  std::string latin1, windows, cyrillic, every;
  for (int i = 0; i < 20'000; ++i) {
    latin1 += static_cast<char>(i % 3 == 0 ? 0xa0 + i % 0x60 : 'a' + i % 26);
    windows += static_cast<char>(i % 5 == 0 ? 0x80 + i % 0x80 : 'a' + i % 26);
    cyrillic += static_cast<char>(i % 6 == 0 ? ' ' : 0xc0 + i % 0x40);  // KOI8-R: nothing of it is UTF-8
    every += static_cast<char>(i % 50 == 0 ? 0x07 + i % 7 : '0' + i % 10);
  }
  for (const std::string& text :
       {""s, "a"s, "\xef\xbb\xbfwith a mark"s, some_text(200'000), latin1, windows, cyrillic, every, "PAR1 is a name"s,
        "BZh"s, "GGUF files hold weights"s, "%PDF-1.4 begins every PDF"s, "\x1b[1mbold\x1b[0m\x07\x08\x0c"s,
        std::string(500, '\x01').append(" is still UTF-8")})
    EXPECT_EQ(refusal(text), "") << text.substr(0, 40);
  // A character that the looked-at part cuts off.
  for (std::size_t before = checked_bytes - 4; before <= checked_bytes; ++before)
    EXPECT_EQ(refusal(std::string(before, '\x01') + "\xf0\x9f\x99\x82"), "") << before;
}

TEST(TextCheck, OfFilesWhatIsInThem) {
  const ScratchDir dir;
  const std::string program =
      "\x7f"
      "ELF"s +
      std::string(5000, '\0');
  write_text(dir / "a.txt", some_text(5000));
  write_text(dir / "a.gz", gzip(some_text(5000)));
  write_text(dir / "b.zst", zstd(program));
  EXPECT_TRUE(check_text_file(dir / "a.txt").ok());
  EXPECT_TRUE(check_text_file(dir / "a.gz").ok()) << "packed text is text";
  const Status packed = check_text_file(dir / "b.zst");
  ASSERT_FALSE(packed.ok());
  EXPECT_NE(packed.error().message.find("b.zst is no text: it looks like a program (ELF)"), std::string::npos);
}

/// 'sluice data tokenize' and training on texts read them through one source.
TEST(TextCheck, SourcesOfTextsRefuseWhatIsNone) {
  const ScratchDir dir;
  const std::string program =
      "\x7f"
      "ELF"s +
      std::string(100'000, '\0');
  write_text(dir / "ls", program);
  write_text(dir / "ls.jsonl", program);
  write_text(dir / "good", "words");
  const std::pair<const char*, const char*> refused[] = {{"ls", "ls is no text: it looks like a program"},
                                                         {"ls.jsonl", "ls.jsonl line 1 is not JSON"}};
  for (const auto& [name, why] : refused) {
    TokenizeOptions options;
    options.texts.paths = {dir / "good", dir / name};
    options.output = dir / "out";
    expect_refused(tokenize(options, byte_encoding()), why);
    EXPECT_FALSE(std::filesystem::exists(dir / "out"));
  }
  TokenizeOptions meant;
  meant.texts.paths = {dir / "ls"};
  meant.texts.kind = TextKind::text;
  meant.output = dir / "out";
  const auto report = tokenize(meant, byte_encoding());
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report->training.tokens, program.size());
}

}  // namespace
}  // namespace sluice
