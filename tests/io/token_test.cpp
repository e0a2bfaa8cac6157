#include <sys/resource.h>
#include <sys/stat.h>

#include <optional>

#include "io/tokens/token_file.h"
#include "io/tokens/tokenize.h"
#include "token_support.h"

namespace sluice {
namespace {

TEST(TokenFile, RoundTripOfEveryWidth) {
  const ScratchDir dir;
  for (const auto& [vocabulary, width] :
       {std::pair(2ull, 1u), std::pair(256ull, 1u), std::pair(257ull, 2u), std::pair(65536ull, 2u),
        std::pair(65537ull, 4u), std::pair(2147483647ull, 4u)}) {
    const auto tokens = random_tokens(1'000'003, vocabulary, vocabulary);
    write_tokens(dir / "t", vocabulary, tokens);
    const std::uint64_t payload = (tokens.size() * width + 7) / 8 * 8;
    EXPECT_EQ(std::filesystem::file_size(dir / "t"), 72 + payload + (payload + 65535) / 65536 * 8);
    auto file = TokenFile::open(dir / "t");
    ASSERT_TRUE(file.ok()) << file.error().message;
    EXPECT_EQ(file->count(), tokens.size());
    EXPECT_EQ(file->vocabulary(), vocabulary);
    std::vector<std::int32_t> back(tokens.size());
    ASSERT_TRUE(file->read(0, back).ok());
    EXPECT_EQ(back, tokens);
    back.resize(777);
    ASSERT_TRUE(file->read(tokens.size() - 777, back).ok());
    EXPECT_TRUE(std::equal(back.begin(), back.end(), tokens.end() - 777));
    EXPECT_TRUE(file->read(tokens.size(), {}).ok());
  }
  EXPECT_EQ(dir.files(), 1u);
}

TEST(TokenFile, RefusesWhatIsWrong) {
  const ScratchDir dir("/dev/shm");
  const std::string path = dir / "t";
  write_tokens(path, 300, random_tokens(100, 300, 1));
  const std::string good = read_text(path);
  expect_refused(TokenFile::open(path, {.vocabulary_limit = 256}), "vocabulary of 300, the model's is 256");
  expect_refused(TokenFile::open(path, {.tokens_min = 101}), "has 100 tokens, at least 101");
  expect_refused(TokenFile::open(dir / "missing"), "No such file");
  expect_refused(TokenFile::open(dir.path()), "not a regular file");
  for (std::size_t length = 0; length < good.size(); ++length) {
    write_text(path, good.substr(0, length));
    EXPECT_FALSE(TokenFile::open(path).ok()) << "truncated to " << length;
  }
  write_text(path, good + "x");
  expect_refused(TokenFile::open(path), "after its checksums");
  write_text(path, std::string("X") + good.substr(1));
  expect_refused(TokenFile::open(path), "wrong magic");
}

TEST(TokenFile, TokenOutOfVocabularyIsNamedWhenRead) {
  const ScratchDir dir;
  write_tokens(dir / "t", 300, random_tokens(100, 300, 2));
  std::string bytes = read_text(dir / "t");
  bytes[72 + 2 * 42] = static_cast<char>(0xff);
  bytes[72 + 2 * 42 + 1] = static_cast<char>(0xff);
  write_text(dir / "t", resealed(bytes));
  auto file = TokenFile::open(dir / "t");
  ASSERT_TRUE(file.ok());
  std::vector<std::int32_t> out(50);
  const Status status = file->read(10, out);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("token 65535 at position 42 is not in the vocabulary of 300"),
            std::string::npos);
  EXPECT_TRUE(file->read(43, out).ok());
  auto writer = TokenWriter::create(dir / "w", 300);
  ASSERT_TRUE(writer.ok());
  for (const std::int32_t bad : {300, -1}) EXPECT_FALSE(writer->append(std::span(&bad, 1)).ok());
}

TEST(TokenFile, RandomMutationsNeverCrash) {
  const ScratchDir dir("/dev/shm");
  write_tokens(dir / "t", 300, random_tokens(200, 300, 3));
  const std::string good = read_text(dir / "t");
  std::mt19937_64 random(4);
  std::vector<std::int32_t> out;
  for (int i = 0; i < 10000; ++i) {
    std::string bad = good;
    for (std::uint64_t n = random() % 4; n-- > 0;) bad[random() % bad.size()] = static_cast<char>(random());
    if (random() % 4 == 0) bad.resize(random() % (bad.size() + 20));
    if (random() % 2 == 0) bad = resealed(bad);
    write_text(dir / "m", bad);
    auto file = TokenFile::open(dir / "m");
    if (!file.ok()) continue;
    out.resize(file->count());
    if (!file->read(0, out).ok()) continue;
    for (const std::int32_t t : out) ASSERT_LT(static_cast<std::uint32_t>(t), file->vocabulary());
  }
}

TEST(OpenOrTokenize, TakesTextAndTokenFilesAndRemembers) {
  const ScratchDir dir;
  const std::string cache = dir / "cache/deep";
  const std::string text = some_text(10'000);
  write_text(dir / "a.txt", text);
  auto file = open_or_tokenize(dir / "a.txt", cache, {.tokens_min = 100});
  ASSERT_TRUE(file.ok()) << file.error().message;
  expect_text(*file, text);
  const std::string cached = file->path();
  const auto written = std::filesystem::last_write_time(cached);
  file = open_or_tokenize(dir / "a.txt", cache, {});
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->path(), cached);
  EXPECT_EQ(std::filesystem::last_write_time(cached), written) << "not made again";
  file = open_or_tokenize(cached, dir / "unused", {});
  ASSERT_TRUE(file.ok());
  EXPECT_FALSE(std::filesystem::exists(dir / "unused"));

  write_text(cached, "damaged");
  file = open_or_tokenize(dir / "a.txt", cache, {});
  ASSERT_TRUE(file.ok());
  expect_text(*file, text);

  const std::string other = some_text(20'000);
  write_text(dir / "a.txt", other);
  file = open_or_tokenize(dir / "a.txt", cache, {});
  ASSERT_TRUE(file.ok());
  expect_text(*file, other);

  expect_refused(open_or_tokenize(dir / "a.txt", cache, {.tokens_min = 1'000'000}), "at least 1000000 are needed");
  expect_refused(open_or_tokenize(dir / "a.txt", cache, {.vocabulary_limit = 100}), "vocabulary of 256");
  expect_refused(open_or_tokenize(dir / "missing", cache, {}), "No such file");
  expect_refused(open_or_tokenize(dir.path(), cache, {}), "can not read");
  expect_refused(open_or_tokenize(dir / "a.txt", dir / "a.txt", {}), "can not make directory");
}

TEST(OpenOrTokenize, KnowsTextByItsContent) {
  const ScratchDir dir;
  const std::string cache = dir / "cache";
  const std::string one(1000, '1'), two(1000, '2');
  write_text(dir / "a.txt", one);
  auto file = open_or_tokenize(dir / "a.txt", cache, {});
  ASSERT_TRUE(file.ok()) << file.error().message;
  const std::string cached = file->path();
  const auto written = std::filesystem::last_write_time(cached);
  std::filesystem::copy(dir / "a.txt", dir / "copy.txt");
  file = open_or_tokenize(dir / "copy.txt", cache, {});
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->path(), cached);
  EXPECT_EQ(std::filesystem::last_write_time(cached), written) << "not made again";

  const auto as_old = std::filesystem::last_write_time(dir / "a.txt");
  write_text(dir / "a.txt", two);
  std::filesystem::last_write_time(dir / "a.txt", as_old);
  file = open_or_tokenize(dir / "a.txt", cache, {});
  ASSERT_TRUE(file.ok());
  expect_text(*file, two);
}

/// The entry for `text` in `cache`, replaced by the tokens of another one.
std::string forged_entry(const ScratchDir& dir, const std::string& text, const std::string& cache) {
  const auto file = open_or_tokenize(text, cache, {});
  EXPECT_TRUE(file.ok()) << file.error().message;
  write_text(dir / "other.txt", "something else");
  EXPECT_TRUE(tokenize_file(dir / "other.txt", file->path()).ok());
  return file->path();
}

TEST(OpenOrTokenize, TrustsNoEntryThatOthersCanWrite) {
  const ScratchDir dir;
  write_text(dir / "a.txt", "the text");
  const std::string entry = forged_entry(dir, dir / "a.txt", dir / "cache");
  chmod(entry.c_str(), 0666);
  const auto file = open_or_tokenize(dir / "a.txt", dir / "cache", {});
  ASSERT_TRUE(file.ok()) << file.error().message;
  expect_text(*file, "the text");
}

TEST(OpenOrTokenize, TrustsNoEntryOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  const ScratchDir dir;
  write_text(dir / "a.txt", "the text");
  const std::string entry = forged_entry(dir, dir / "a.txt", dir / "cache");
  ASSERT_EQ(chown(entry.c_str(), 65534, 65534), 0);
  const auto file = open_or_tokenize(dir / "a.txt", dir / "cache", {});
  ASSERT_TRUE(file.ok()) << file.error().message;
  expect_text(*file, "the text");
}

/// The environment as it was, when the test is over.
class KeptVariable {
 public:
  explicit KeptVariable(const char* name) : name_(name) {
    if (const char* value = std::getenv(name)) value_ = value;
  }
  ~KeptVariable() { value_ ? setenv(name_, value_->c_str(), 1) : unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> value_;
};

/// Until it goes, what is done is done by user 65534, who is nobody's owner.
class AsNobody {
 public:
  AsNobody() { EXPECT_EQ(seteuid(65534), 0); }
  ~AsNobody() { EXPECT_EQ(seteuid(0), 0); }
  AsNobody(const AsNobody&) = delete;
  AsNobody& operator=(const AsNobody&) = delete;
};

TEST(OpenOrTokenize, ReadsTheTokensOfADirectoryThatBelongsToAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  const ScratchDir dir;
  const std::string cache = dir / "run", own = dir / "own";
  ASSERT_EQ(chmod((dir / "").c_str(), 0755), 0);
  std::filesystem::create_directories(own);
  ASSERT_EQ(chown(own.c_str(), 65534, 65534), 0);
  write_text(dir / "a.txt", "the text");
  write_text(dir / "b.txt", "a text that is not there yet");
  const auto made = open_or_tokenize(dir / "a.txt", cache, {});
  ASSERT_TRUE(made.ok()) << made.error().message;

  const KeptVariable variable("XDG_CACHE_HOME");
  setenv("XDG_CACHE_HOME", own.c_str(), 1);
  const AsNobody nobody;
  std::vector<std::string> notes;
  const auto read =
      open_or_tokenize(dir / "a.txt", cache, {}, {.note = [&](const std::string& note) { notes.push_back(note); }});
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->path(), made->path());
  EXPECT_TRUE(notes.empty()) << notes[0];

  // What can not be kept there is kept with what is this user's own.
  const auto other = open_or_tokenize(dir / "b.txt", cache, {});
  ASSERT_TRUE(other.ok()) << other.error().message;
  EXPECT_TRUE(other->path().starts_with(own)) << other->path();
  expect_text(*other, "a text that is not there yet");
}

TEST(OpenOrTokenize, KeepsTokensInTheUsersCache) {
  const KeptVariable cache("XDG_CACHE_HOME"), home("HOME");
  const ScratchDir dir;
  write_text(dir / "a.txt", "the text");
  setenv("XDG_CACHE_HOME", (dir / "cache").c_str(), 1);
  auto file = open_or_tokenize(dir / "a.txt", "", {});
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(std::filesystem::path(file->path()).parent_path(), dir / "cache/sluice/tokens");

  unsetenv("XDG_CACHE_HOME");
  unsetenv("HOME");
  expect_refused(open_or_tokenize(dir / "a.txt", "", {}), "neither XDG_CACHE_HOME nor HOME is set");
  EXPECT_TRUE(open_or_tokenize(file->path(), "", {}).ok()) << "a token file needs no cache";
}

}  // namespace
}  // namespace sluice
