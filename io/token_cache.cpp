#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "io/checksum.h"
#include "io/token_file.h"
#include "io/token_sink.h"
#include "io/tokenize.h"
#include "io/user_cache.h"

namespace sluice {
namespace {

/// Bytes of an entry that are verified before it is used: a moment, beside the text that is read for its name.
constexpr std::uint64_t verified_at_once_max = 256u << 20;

/// A name in the cache that stands for the content of the text, how it is read, and nothing else.
Result<std::string> cache_name(const std::string& path) {
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
  return fmt::format("{:016x}{}.tokens", sum.value(), is_jsonl_name(path) ? "-jsonl" : "");
}

/// What is wrong with the entry; empty: nothing, as far as it was looked at.
std::string wrong_with(const std::string& cached) {
  const auto file = TokenFile::open(cached, {.own = true, .if_damaged = ""});
  if (!file.ok()) return file.error().message;
  if (!file->has_checksums()) return fmt::format("{} has no checksums", cached);
  // Larger ones are verified as they are read.
  if (file->bytes() > verified_at_once_max) return {};
  const Status whole = file->verify();
  return whole.ok() ? std::string() : whole.error().message;
}

Status make_entry(const std::string& path, const std::string& name, const std::string& cached) {
  TokenizeOptions options;
  options.texts.paths = {path};
  options.output = cached;
  options.before_publishing = [&]() -> Status {
    SLUICE_ASSIGN(const std::string still, cache_name(path));
    if (still != name) return bad_request(fmt::format("{} changed while it was read; start again", path));
    return success();
  };
  const auto made = tokenize(options, byte_encoding());
  if (!made.ok()) return made.error();
  return success();
}

/// A damaged, old or foreign entry is made anew.
Status ensure_entry(const std::string& path, const std::string& name, const std::string& cached,
                    const std::function<void(const std::string&)>& note) {
  std::error_code error;
  // Also what can not be told: then making it says why.
  if (!std::filesystem::exists(cached, error)) return make_entry(path, name, cached);
  const std::string wrong = wrong_with(cached);
  if (wrong.empty()) return success();
  if (note) note(fmt::format("{}; it is made again from {}", wrong, path));
  const Status made = make_entry(path, name, cached);
  if (made.ok()) return success();
  return Error{made.error().code,
               fmt::format("{}, and can not be made again from {}: {}", wrong, path, made.error().message)};
}

}  // namespace

Result<TokenFile> open_or_tokenize(const std::string& path, std::string cache_dir,
                                   const TokenFile::Requirements& requirements,
                                   const std::function<void(const std::string&)>& note) {
  SLUICE_ASSIGN(const auto format, recognize_tokens(path));
  if (format) return TokenFile::open(path, requirements);
  if (cache_dir.empty()) {
    const auto user = user_cache_directory();
    if (!user.ok())
      return bad_request(
          fmt::format("no place for the tokens of {}: {}; give a token file that 'sluice data tokenize' "
                      "makes of it",
                      path, user.error().message));
    cache_dir = *user + "/tokens";
  }
  SLUICE_ASSIGN(const std::string name, cache_name(path));
  std::error_code error;
  std::filesystem::create_directories(cache_dir, error);
  if (error) return bad_request(fmt::format("can not make directory {}: {}", cache_dir, error.message()));
  const std::string cached = cache_dir + "/" + name;
  SLUICE_TRY(ensure_entry(path, name, cached, note));
  // What does not fit the model is wrong either way.
  TokenFile::Requirements of_entry = requirements;
  of_entry.if_damaged = fmt::format("remove it, and it is made again from {}", path);
  auto file = TokenFile::open(cached, of_entry);
  if (!file.ok()) return file.error().in(path);
  return file;
}

}  // namespace sluice
