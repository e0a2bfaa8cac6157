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

}  // namespace

Result<TokenFile> open_or_tokenize(const std::string& path, std::string cache_dir,
                                   const TokenFile::Requirements& requirements) {
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
  // A damaged or foreign entry is made anew; what does not fit the model is wrong either way.
  if (!TokenFile::open(cached, {.own = true}).ok()) {
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
  }
  auto file = TokenFile::open(cached, requirements);
  if (!file.ok()) return file.error().in(path);
  return file;
}

}  // namespace sluice
