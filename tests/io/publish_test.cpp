#include "io/files/publish.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "support.h"

namespace sluice {
namespace {

/// Writes beyond `bytes` in any file fail (EFBIG) while this lives: a full disk that needs no mount.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : old_handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{bytes, old_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, old_handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit old_{};
  void (*old_handler_)(int);
};

bool is_model(const std::string& name) { return name == "model"; }

TEST(Publish, ReplacesWholeFilesAndLeavesNothingElse) {
  const ScratchDir dir;
  const std::string path = dir / "report.json";
  ASSERT_TRUE(publish_file(path, "one").ok());
  ASSERT_TRUE(publish_file(path, "two", 0600).ok());
  EXPECT_EQ(read_text(path), "two");
  struct stat st {};
  ASSERT_EQ(stat(path.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
  EXPECT_EQ(dir.files(), 1u);
  const Status missing = publish_file(dir / "no/such/file", "x");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::bad_request);
}

TEST(Publish, NotPublishedIsNotThere) {
  const ScratchDir dir;
  {
    auto file = AtomicFile::create(dir / "x");
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file->append(std::as_bytes(std::span("abc", 3))).ok());
    EXPECT_FALSE(std::filesystem::exists(dir / "x"));
  }
  EXPECT_EQ(dir.files(), 0u);
}

TEST(Publish, LinksStayAndWhatTheyLeadToIsReplaced) {
  const ScratchDir dir;
  std::filesystem::create_directory(dir / "far");
  ASSERT_TRUE(publish_file(dir / "far/file", "one").ok());
  std::filesystem::create_symlink("far/file", dir / "link");
  ASSERT_TRUE(publish_file(dir / "link", "two").ok());
  EXPECT_TRUE(std::filesystem::is_symlink(dir / "link"));
  EXPECT_EQ(read_text(dir / "far/file"), "two");
  std::filesystem::create_symlink("nowhere", dir / "dangling");
  const auto lost = AtomicFile::create(dir / "dangling");
  ASSERT_FALSE(lost.ok());
  EXPECT_EQ(lost.error().code, ErrorCode::bad_request);
  EXPECT_NE(lost.error().message.find("leads nowhere"), std::string::npos) << lost.error().message;
}

TEST(Publish, WhatIsNoFileIsNotReplaced) {
  const ScratchDir dir;
  ASSERT_EQ(mkfifo((dir / "pipe").c_str(), 0600), 0);
  for (const std::string& path : {dir / "pipe", std::string("/dev/null"), dir.path()}) {
    const auto file = AtomicFile::create(path);
    ASSERT_FALSE(file.ok()) << path;
    EXPECT_EQ(file.error().code, ErrorCode::bad_request) << file.error().message;
  }
  struct stat st {};
  ASSERT_EQ(stat("/dev/null", &st), 0);
  EXPECT_TRUE(S_ISCHR(st.st_mode));
}

TEST(Publish, SmallFilesGoIntoPipesAndDevices) {
  const ScratchDir dir;
  ASSERT_EQ(mkfifo((dir / "pipe").c_str(), 0600), 0);
  const int reader = open((dir / "pipe").c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  ASSERT_TRUE(check_stream_path(dir / "pipe").ok());
  ASSERT_TRUE(publish_file(dir / "pipe", "text").ok());
  char text[8] = {};
  EXPECT_EQ(read(reader, text, sizeof text), 4);
  EXPECT_STREQ(text, "text");
  close(reader);
  const Status full = publish_file("/dev/full", "text");
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(full.error().code, ErrorCode::fault);
}

TEST(Publish, WhatAKilledProcessLeftGoesWithTheNext) {
  const ScratchDir dir;
  if (const pid_t child = fork(); child == 0) {
    const auto file = AtomicFile::create(dir / "big");
    _exit(file.ok() ? 0 : 1);
  } else {
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
  }
  ASSERT_EQ(dir.files(), 1u);
  ASSERT_TRUE(publish_file(dir / "big.tmp-another", "of more letters: none of ours").ok());
  auto first = AtomicFile::create(dir / "big");
  ASSERT_TRUE(first.ok());
  auto second = AtomicFile::create(dir / "big");  // the first is being written, and stays
  ASSERT_TRUE(second.ok());
  ASSERT_TRUE(first->publish().ok());
  ASSERT_TRUE(second->publish().ok());
  EXPECT_EQ(dir.files(), 2u);
}

TEST(Publish, TellsWhetherTwoNamesAreOneFile) {
  const ScratchDir dir;
  ASSERT_TRUE(publish_file(dir / "a", "x").ok());
  std::filesystem::create_symlink("a", dir / "link");
  std::filesystem::create_hard_link(dir / "a", dir / "hard");
  EXPECT_TRUE(is_same_file(dir / "a", dir / "link"));
  EXPECT_TRUE(is_same_file(dir / "a", dir / "hard"));
  EXPECT_TRUE(is_same_file(dir / "not/../there", dir / "there"));
  EXPECT_FALSE(is_same_file(dir / "a", dir / "there"));
}

TEST(StagedDirectory, TakesItsNameWhole) {
  const ScratchDir dir;
  {
    auto staged = StagedDirectory::create(dir / "d", is_model);
    ASSERT_TRUE(staged.ok()) << staged.error().message;
    ASSERT_TRUE(publish_file(staged->staging() + "/a", "one").ok());
    EXPECT_FALSE(std::filesystem::exists(dir / "d"));
    ASSERT_TRUE(staged->publish(false).ok());
  }
  EXPECT_EQ(read_text(dir / "d/a"), "one");
  EXPECT_EQ(std::filesystem::status(dir / "d").permissions(), std::filesystem::perms{0755});
  EXPECT_EQ(dir.files(), 1u);
  const auto missing = StagedDirectory::create(dir / "no/such/d", is_model);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::bad_request);
}

TEST(StagedDirectory, NotPublishedIsNotThere) {
  const ScratchDir dir;
  {
    auto staged = StagedDirectory::create(dir / "d", is_model);
    ASSERT_TRUE(staged.ok());
    ASSERT_TRUE(publish_file(staged->staging() + "/a", "one").ok());
  }
  EXPECT_EQ(dir.files(), 0u);
}

TEST(StagedDirectory, ReplacesOnlyWhenAskedTo) {
  const ScratchDir dir;
  std::filesystem::create_directory(dir / "d");
  {
    auto staged = StagedDirectory::create(dir / "d", is_model);
    ASSERT_TRUE(staged.ok() && staged->publish(false).ok()) << "an empty one may be there";
  }
  write_text(dir / "d/old", "old");
  {
    auto staged = StagedDirectory::create(dir / "d", is_model);
    ASSERT_TRUE(staged.ok());
    ASSERT_TRUE(publish_file(staged->staging() + "/new", "new").ok());
    const Status refused = staged->publish(false);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::fault);
    EXPECT_EQ(read_text(dir / "d/old"), "old");
    ASSERT_TRUE(staged->publish(true).ok());
  }
  EXPECT_EQ(read_text(dir / "d/new"), "new");
  EXPECT_FALSE(std::filesystem::exists(dir / "d/old"));
  EXPECT_EQ(dir.files(), 1u);
}

TEST(Publish, PipesAreNotReadAsFiles) {
  const ScratchDir dir;
  ASSERT_EQ(mkfifo((dir / "p").c_str(), 0600), 0);
  const auto text = read_file(dir / "p");
  ASSERT_FALSE(text.ok());
  EXPECT_NE(text.error().message.find("not a regular file"), std::string::npos);
}

TEST(Publish, FailedWriteKeepsTheOldFile) {
  const ScratchDir dir;
  ASSERT_TRUE(publish_file(dir / "x", "old").ok());
  {
    const FileSizeLimit full(1000);
    EXPECT_FALSE(publish_file(dir / "x", std::string(2000, 'n')).ok());
  }
  EXPECT_EQ(read_text(dir / "x"), "old");
  EXPECT_EQ(dir.files(), 1u);
}

TEST(ReadFile, WholeOrRefused) {
  const ScratchDir dir;
  const std::string text(200'000, 'q');
  write_text(dir / "x", text);
  EXPECT_EQ(*read_file(dir / "x"), text);
  EXPECT_FALSE(read_file(dir / "x", 100'000).ok());
  EXPECT_FALSE(read_file(dir / "missing").ok());
  EXPECT_FALSE(read_file(dir.path()).ok());
}

TEST(LineWriter, AppendsCompleteLines) {
  const ScratchDir dir;
  const std::string path = dir / "metrics.jsonl";
  {
    auto writer = LineWriter::open(path, false);
    ASSERT_TRUE(writer.ok());
    EXPECT_TRUE(writer->write_line("{\"step\":1}").ok());
    EXPECT_TRUE(writer->write_line("{\"step\":2}").ok());
  }
  write_text(path, read_text(path) + "{\"st");  // as a killed run might leave it
  {
    auto writer = LineWriter::open(path, true);
    ASSERT_TRUE(writer.ok());
    EXPECT_TRUE(writer->write_line("{\"step\":3}").ok());
  }
  EXPECT_EQ(read_text(path), "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n");
  ASSERT_TRUE(LineWriter::open(path, false).ok());
  EXPECT_EQ(read_text(path), "");
  EXPECT_FALSE(LineWriter::open(dir / "no/where", true).ok());
}

TEST(LineWriter, CutsOffALongIncompleteLine) {
  const ScratchDir dir;
  for (const std::size_t length : {4095u, 4096u, 4097u, 9000u}) {
    write_text(dir / "x", "first\n" + std::string(length, 'z'));
    ASSERT_TRUE(LineWriter::open(dir / "x", true).ok());
    EXPECT_EQ(read_text(dir / "x"), "first\n");
    write_text(dir / "x", std::string(length, 'z'));
    ASSERT_TRUE(LineWriter::open(dir / "x", true).ok());
    EXPECT_EQ(read_text(dir / "x"), "");
  }
}

TEST(LineWriter, FullDiskTakesTheLineBack) {
  const ScratchDir dir;
  auto writer = LineWriter::open(dir / "x", false);
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(writer->write_line(std::string(99, 'a')).ok());
  {
    const FileSizeLimit full(150);
    const Status status = writer->write_line(std::string(99, 'b'));
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.error().message.find("could not be written"), std::string::npos);
  }
  EXPECT_EQ(read_text(dir / "x"), std::string(99, 'a') + "\n");
  EXPECT_TRUE(writer->write_line("c").ok());
  EXPECT_EQ(read_text(dir / "x"), std::string(99, 'a') + "\nc\n");
}

TEST(StagedDirectory, WhatKilledProcessesLeftIsRemovedByTheNext) {
  const ScratchDir dir;
  const std::string target = dir / "out";
  for (int i = 0; i < 2; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      const auto staged = StagedDirectory::create(target, is_model);
      if (!staged.ok()) _exit(1);
      write_text(staged->staging() + "/model", "half");
      const auto file = AtomicFile::create(staged->staging() + "/model");
      _exit(file.ok() ? 7 : 1);  // without any destructor
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(WEXITSTATUS(status), 7);
    EXPECT_EQ(dir.files(), 1u) << "the second removed what the first had left";
  }
  const auto staged = StagedDirectory::create(target, is_model);
  ASSERT_TRUE(staged.ok()) << staged.error().message;
  EXPECT_EQ(dir.files(), 1u);
  EXPECT_TRUE(std::filesystem::is_empty(staged->staging()));
}

TEST(StagedDirectory, WhatMayBeAnothersStays) {
  const ScratchDir dir;
  const std::string target = dir / "out";
  auto working = StagedDirectory::create(target, is_model);
  ASSERT_TRUE(working.ok()) << working.error().message;
  for (const char* name : {"out.tmp-backup", "out.tmp-longer-name", "other.tmp-AbCdEf", "out"})
    std::filesystem::create_directory(dir / name);
  write_text(dir / "out.tmp-backup/notes", "mine");
  std::filesystem::create_directory(dir / "out.tmp-folder");
  std::filesystem::create_directory(dir / "out.tmp-folder/model");
  write_text(dir / "out.tmp-a_file", "mine");
  std::filesystem::create_directory_symlink(dir / "other.tmp-AbCdEf", dir / "out.tmp-a_link");
  const std::size_t before = dir.files();
  {
    const auto staged = StagedDirectory::create(target, is_model);
    ASSERT_TRUE(staged.ok()) << staged.error().message;
    EXPECT_EQ(dir.files(), before + 1);
  }
  EXPECT_EQ(dir.files(), before);
  write_text(working->staging() + "/model", "whole");
  EXPECT_TRUE(working->publish(false).ok());
  EXPECT_EQ(read_text(target + "/model"), "whole");
}

}  // namespace
}  // namespace sluice
