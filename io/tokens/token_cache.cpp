#include "io/tokens/token_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "io/checksum.h"
#include "io/files/publish.h"
#include "io/files/user_cache.h"
#include "io/tokens/text_check.h"
#include "io/tokens/token_sink.h"
#include "io/tokens/tokenize.h"
#include "sluice/size.h"

namespace sluice {
namespace {

/// Bytes of an entry that are verified before it is used: a moment, beside the text that is read for its name.
constexpr std::uint64_t verified_at_once_max = 256u << 20;

/// A name in the cache that stands for the content of the text, how it is read, what makes its tokens, and nothing
/// else.
Result<std::string> cache_name(const std::string& path, const Tokenizer* tokenizer) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored))
    return bad_request(fmt::format("{} is not a regular file", path));
  std::ifstream text(path, std::ios::binary);
  StreamingChecksum sum;
  std::vector<char> chunk(1u << 20);
  while (text) {
    text.read(chunk.data(), static_cast<std::streamsize>(chunk.size()));
    sum.add(std::as_bytes(std::span(chunk)).first(static_cast<std::size_t>(text.gcount())));
  }
  if (!text.eof()) return bad_request(fmt::format("can not read {}: {}", path, std::strerror(errno)));
  const std::string maker = tokenizer != nullptr ? fmt::format("-{:016x}", tokenizer->hash_with_template()) : "";
  return fmt::format("{:016x}{}{}.tokens", sum.value(), maker, is_jsonl_name(path) ? "-jsonl" : "");
}

/// What is wrong with the entry; empty: nothing, as far as it was looked at.
std::string wrong_with(const std::string& cached, uid_t owner) {
  const auto file = TokenFile::open(cached, {.owner = owner, .if_damaged = ""});
  if (!file.ok()) return file.error().message;
  if (!file->has_checksums()) return fmt::format("{} has no checksums", cached);
  // Larger ones are verified as they are read.
  if (file->bytes() > verified_at_once_max) return {};
  const Status whole = file->verify();
  return whole.ok() ? std::string() : whole.error().message;
}

/// A text and where its tokens are kept.
struct Entry {
  const std::string &path, &name, file;
  const TextTokens& tokens;
  uid_t owner = geteuid();
};

Status make_entry(const Entry& entry) {
  const std::string& path = entry.path;
  const Tokenizer* tokenizer = entry.tokens.tokenizer.get();
  std::error_code ignored;
  // Bytes are copied in a moment.
  if (tokenizer != nullptr && entry.tokens.note)
    entry.tokens.note(fmt::format("tokenizing {} ({}), to be kept as {}", path,
                                  format_bytes(std::filesystem::file_size(path, ignored)), entry.file));
  TokenizeOptions options;
  options.texts.paths = {path};
  options.output = entry.file;
  if (tokenizer != nullptr) options.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  options.before_publishing = [&]() -> Status {
    SLUICE_ASSIGN(const std::string still, cache_name(path, tokenizer));
    if (still != entry.name) return bad_request(fmt::format("{} changed while it was read; start again", path));
    return success();
  };
  const auto watch = [&](const TokenizeReport& report) {
    if (!entry.tokens.watch) return success();
    return entry.tokens.watch(static_cast<double>(report.input_bytes) /
                              static_cast<double>(std::max<std::uint64_t>(1, report.input_bytes_total)));
  };
  const auto made = tokenize(
      options, tokenizer != nullptr ? tokenizer_encoding(entry.tokens.tokenizer, true) : byte_encoding(), watch);
  if (!made.ok()) return made.error();
  return success();
}

/// A damaged, old or foreign entry is made anew.
Status ensure_entry(const Entry& entry) {
  std::error_code error;
  const std::string directory = std::filesystem::path(entry.file).parent_path().string();
  std::filesystem::create_directories(directory, error);
  if (error) return bad_request(fmt::format("can not make directory {}: {}", directory, error.message()));
  // Also what can not be told: then making it says why.
  if (!std::filesystem::exists(entry.file, error)) return make_entry(entry);
  const std::string wrong = wrong_with(entry.file, entry.owner);
  if (wrong.empty()) return success();
  if (entry.tokens.note) entry.tokens.note(fmt::format("{}; it is made again from {}", wrong, entry.path));
  const Status made = make_entry(entry);
  if (made.ok()) return success();
  return Error{made.error().code,
               fmt::format("{}, and can not be made again from {}: {}", wrong, entry.path, made.error().message)};
}

Result<std::string> user_tokens(const std::string& path) {
  const auto user = user_cache_directory();
  if (user.ok()) return *user + "/tokens";
  return bad_request(
      fmt::format("no place for the tokens of {}: {}; give a token file that 'sluice data tokenize' makes of it", path,
                  user.error().message));
}

/// Where the tokens of the text called `name` are, or can be made.
Result<Entry> entry_of(const std::string& path, const std::string& name, const std::string& cache_dir,
                       const TextTokens& tokens) {
  if (!cache_dir.empty()) {
    Entry entry{path, name, cache_dir + "/" + name, tokens};
    struct stat st {};
    if (stat(cache_dir.c_str(), &st) == 0) entry.owner = st.st_uid;
    const bool may_write = faccessat(AT_FDCWD, nearest_directory(cache_dir).c_str(), W_OK, AT_EACCESS) == 0;
    if (may_write || wrong_with(entry.file, entry.owner).empty()) return entry;
  }
  SLUICE_ASSIGN(const std::string user, user_tokens(path));
  return Entry{path, name, user + "/" + name, tokens};
}

}  // namespace

Result<TokenFile> open_or_tokenize(const std::string& path, const std::string& cache_dir,
                                   const TokenFile::Requirements& requirements, const TextTokens& tokens) {
  SLUICE_ASSIGN(const auto format, recognize_tokens(path));
  if (format) return TokenFile::open(path, requirements);
  std::error_code error;
  // What is no regular file is refused below.
  if (std::filesystem::is_regular_file(path, error)) SLUICE_TRY(check_text_file(path));
  SLUICE_ASSIGN(const std::string name, cache_name(path, tokens.tokenizer.get()));
  SLUICE_ASSIGN(const Entry entry, entry_of(path, name, cache_dir, tokens));
  SLUICE_TRY(ensure_entry(entry));
  // What does not fit the model is wrong either way.
  TokenFile::Requirements of_entry = requirements;
  of_entry.if_damaged = fmt::format("remove it, and it is made again from {}", path);
  auto file = TokenFile::open(entry.file, of_entry);
  if (!file.ok()) return file.error().in(path);
  return file;
}

}  // namespace sluice
