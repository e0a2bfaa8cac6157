#include "io/tokens/text_source.h"

#include "token_support.h"

namespace sluice {
namespace {

/// All of a text, in reads of an odd size.
Result<std::string> read_all(const std::string& path, std::size_t step = 100'003) {
  SLUICE_ASSIGN(TextStream stream, TextStream::open(path));
  std::string text;
  for (std::string part(step, '\0');;) {
    SLUICE_ASSIGN(const std::size_t n, stream.read(part));
    text.append(part, 0, n);
    if (n < step) return text;
  }
}

TEST(TextStream, ReadsEveryPacking) {
  const ScratchDir dir;
  for (const std::size_t size : {0, 1, 3, 4, 100'003, 3'000'000}) {
    const std::string text = some_text(size).substr(0, size);
    write_text(dir / "a.txt", text);
    for (const char* name : {"a.gz", "a.dz", "gzip-by-content"}) write_text(dir / name, gzip(text));
    for (const char* name : {"a.zst", "zstd-by-content"}) write_text(dir / name, zstd(text));
    for (const char* name : {"a.txt", "a.gz", "a.dz", "gzip-by-content", "a.zst", "zstd-by-content"}) {
      const auto read = read_all(dir / name);
      ASSERT_TRUE(read.ok()) << read.error().message;
      EXPECT_TRUE(*read == text) << name << " of " << size;
    }
  }
  const std::string text = some_text(5000);
  write_text(dir / "a.zst", zstd(text));
  write_text(dir / "a.gz", gzip(text));
  for (const char* name : {"a.gz", "a.zst"}) {
    const auto read = read_all(dir / name, 1);
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(*read, text) << name << ", a byte at a time";
  }
}

TEST(TextStream, ReadsMembersAndFramesOneAfterTheOther) {
  const ScratchDir dir;
  const std::string text = some_text(400'000);
  write_text(dir / "a.gz", gzip(text) + gzip("") + gzip("more"));
  write_text(dir / "a.zst", zstd(text) + zstd("") + zstd("more"));
  for (const char* name : {"a.gz", "a.zst"}) {
    const auto read = read_all(dir / name);
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_TRUE(*read == text + "more") << name;
  }
}

TEST(TextStream, EveryTruncationIsRefused) {
  const ScratchDir dir("/dev/shm");
  const std::string text = some_text(2000);
  for (const auto& [name, good] : {std::pair("a.gz", gzip(text)), std::pair("a.zst", zstd(text))})
    for (std::size_t length = 0; length < good.size(); ++length) {
      write_text(dir / name, good.substr(0, length));
      expect_refused(read_all(dir / name), name);
    }
}

TEST(TextStream, DamageIsRefused) {
  const ScratchDir dir("/dev/shm");
  const std::string text = some_text(300'000);
  std::mt19937_64 random(1);
  for (const auto& [name, good] : {std::pair("a.gz", gzip(text)), std::pair("a.zst", zstd(text))})
    for (int i = 0; i < 200; ++i) {
      std::string bad = good;
      // Behind what a header says about names and times.
      const std::size_t at = 20 + random() % (bad.size() - 20);
      bad[at] = static_cast<char>(bad[at] ^ (1 << random() % 8));
      write_text(dir / name, bad);
      expect_refused(read_all(dir / name), name);
    }
  write_text(dir / "a.gz", gzip(text) + "tail");
  expect_refused(read_all(dir / "a.gz"), "is damaged");
  write_text(dir / "a.zst", zstd(text) + "tail");
  expect_refused(read_all(dir / "a.zst"), "is damaged");
}

struct Read {
  std::vector<std::string> documents;
  std::vector<std::string> places;
};

Result<Read> read_documents(TextSource::Options options) {
  SLUICE_ASSIGN(TextSource source, TextSource::open(std::move(options)));
  Read read;
  std::string whole, storage;
  for (TextPiece piece;;) {
    SLUICE_ASSIGN(const bool found, source.next(piece));
    if (!found) break;
    std::string_view text;
    SLUICE_TRY(source.text_of(piece, storage, text));
    whole += text;
    EXPECT_EQ(piece.document, read.documents.size());
    if (!piece.last) continue;
    read.documents.push_back(std::exchange(whole, {}));
    read.places.push_back(source.where(piece));
  }
  EXPECT_EQ(source.bytes_read(), source.bytes_total());
  return read;
}

TEST(TextSource, DocumentsOfSeveralInputsInOrder) {
  const ScratchDir dir;
  write_text(dir / "a.txt", "first\ntext");
  write_text(dir / "b.jsonl.gz",
             gzip("{\"id\":1,\"text\":\"a \\u00e4\\n\"}\r\n\n  \n{\"meta\":{\"text\":3},\"text\":\"\"}\n"
                  "{\"text\":\"no newline\"}"));
  write_text(dir / "c.ndjson", "");
  write_text(dir / "d.zst", zstd("last"));
  write_text(dir / "e", "");
  for (const std::size_t part : {std::size_t{0}, std::size_t{1}, std::size_t{4}, std::size_t{1} << 20}) {
    TextSource::Options options;
    options.paths = {dir / "a.txt", dir / "b.jsonl.gz", dir / "c.ndjson", dir / "d.zst", dir / "e"};
    options.part_bytes = part;
    const auto read = read_documents(options);
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(read->documents, (std::vector<std::string>{"first\ntext", "a \xc3\xa4\n", "", "no newline", "last", ""}));
    EXPECT_EQ(read->places[2], dir / "b.jsonl.gz" + " line 4");
  }
}

TEST(TextSource, KindAndFieldAreChosen) {
  const ScratchDir dir;
  write_text(dir / "a.jsonl", "{\"body\":\"one\"}\n{\"body\":\"two\"}\n");
  write_text(dir / "b", "{\"body\":\"three\"}");
  TextSource::Options options;
  options.paths = {dir / "a.jsonl", dir / "b"};
  options.field = "body";
  options.kind = TextKind::jsonl;
  auto read = read_documents(options);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->documents, (std::vector<std::string>{"one", "two", "three"}));
  options.kind = TextKind::text;
  read = read_documents(options);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->documents.size(), 2u);
}

TEST(TextSource, LongLinesAndTextsAreBounded) {
  const ScratchDir dir;
  const auto line = [](std::size_t n) { return "{\"text\":\"" + std::string(n, 'x') + "\"}"; };
  write_text(dir / "a.jsonl", line(5'000'000) + "\n" + line(10) + "\n");
  write_text(dir / "b.txt", std::string(5'000'000, 'x'));
  TextSource::Options options;
  options.paths = {dir / "a.jsonl", dir / "b.txt"};
  const auto read = read_documents(options);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->documents[0].size(), 5'000'000u);
  EXPECT_EQ(read->documents[2].size(), 5'000'000u);
  options.document_bytes_max = 1u << 20;
  expect_refused(read_documents(options), "a.jsonl line 1 is longer than 1 MiB");
  options.paths = {dir / "b.txt"};
  expect_refused(read_documents(options), "b.txt is longer than 1 MiB");
  options.part_bytes = 1000;
  EXPECT_TRUE(read_documents(options).ok()) << "in parts, texts may have any length";
}

TEST(TextSource, RandomLinesNeverCrash) {
  const ScratchDir dir("/dev/shm");
  const std::string good = "{\"a\":[1,{\"text\":null}],\"text\":\"a\\u00e4b\\n\",\"z\":-1.5e3}\n";
  std::mt19937_64 random(2);
  std::size_t refused = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string bad = good + good;
    for (std::uint64_t n = random() % 4; n-- > 0;) bad[random() % bad.size()] = static_cast<char>(random());
    write_text(dir / "a.jsonl", bad);
    TextSource::Options options;
    options.paths = {dir / "a.jsonl"};
    const auto read = read_documents(options);
    if (read.ok()) continue;
    ++refused;
    ASSERT_NE(read.error().message.find("a.jsonl line "), std::string::npos) << read.error().message;
  }
  EXPECT_GT(refused, 1000u);
}

}  // namespace
}  // namespace sluice
