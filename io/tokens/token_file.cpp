#include "io/tokens/token_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <span>
#include <vector>

#include "io/checksum.h"
#include "io/tokens/megatron.h"
#include "io/tokens/token_header.h"

namespace sluice {

std::uint32_t token_bytes_for(std::uint64_t vocabulary) {
  if (vocabulary <= 1u << 8) return 1;
  return vocabulary <= 1u << 16 ? 2 : 4;
}

std::uint64_t header_checksum(const TokenHeader& h) {
  return checksum(std::as_bytes(std::span(&h, 1)).first(offsetof(TokenHeader, checksum)));
}

namespace {

/// Stored tokens to `out`; returns the largest.
template <class T>
std::uint32_t widen(const std::byte* data, std::span<std::int32_t> out) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    T token;
    std::memcpy(&token, data + i * sizeof token, sizeof token);
    largest = std::max<std::uint32_t>(largest, token);
    out[i] = static_cast<std::int32_t>(token);
  }
  return largest;
}

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

bool has_index(const std::string& path) { return exists(megatron_name(path) + ".idx"); }

Result<TokenLayout> layout_of(TokenFormat format, std::span<const std::byte> tokens, std::span<const std::byte> index) {
  switch (format) {
    case TokenFormat::sluice: return sluice_layout(tokens);
    case TokenFormat::megatron: return megatron_layout(index, tokens.size());
    case TokenFormat::llm_c: return llm_c_layout(tokens);
    case TokenFormat::nanogpt: return nanogpt_layout(tokens);
  }
  return fault("unknown format");
}

/// By the first bytes of a file alone.
std::optional<TokenFormat> marked_format(std::span<const std::byte> begin) {
  if (begin.size() >= 8 && std::memcmp(begin.data(), token_magic, 8) == 0) return TokenFormat::sluice;
  if (has_megatron_magic(begin)) return TokenFormat::megatron;
  if (has_llm_c_magic(begin)) return TokenFormat::llm_c;
  return std::nullopt;
}

}  // namespace

Result<std::optional<TokenFormat>> recognize_tokens(const std::string& path) {
  using Found = std::optional<TokenFormat>;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0 && errno == ENOENT && exists(path + ".bin") && exists(path + ".idx")) return Found(TokenFormat::megatron);
  if (fd < 0) return bad_request(fmt::format("can not open {}: {}", path, std::strerror(errno)));
  std::array<std::byte, 16> begin{};
  const ssize_t n = pread(fd, begin.data(), begin.size(), 0);
  const int error = errno;
  ::close(fd);
  if (n < 0) return bad_request(fmt::format("can not read {}: {}", path, std::strerror(error)));
  const auto there = std::span<const std::byte>(begin).first(static_cast<std::size_t>(n));
  if (const Found marked = marked_format(there)) return marked;
  if (path.ends_with(".tokens")) return Found(TokenFormat::sluice);
  if (path.ends_with(".idx") && exists(megatron_name(path) + ".bin")) return Found(TokenFormat::megatron);
  if (path.ends_with(".bin")) return Found(has_index(path) ? TokenFormat::megatron : TokenFormat::nanogpt);
  return Found();
}

bool has_token_mark(const std::string& path) {
  const auto is_marked = [](const std::string& file) {
    std::array<char, 16> begin{};
    std::ifstream stream(file, std::ios::binary);
    stream.read(begin.data(), begin.size());
    return marked_format(std::as_bytes(std::span(begin).first(static_cast<std::size_t>(stream.gcount())))).has_value();
  };
  return is_marked(path) || (path.ends_with(".bin") && is_marked(megatron_name(path) + ".idx"));
}

Result<TokenFile> TokenFile::open(const std::string& path, const Requirements& requirements) {
  // What is no token file, a directory or a missing one is refused below, where its name and size are known.
  const auto found = recognize_tokens(path);
  const TokenFormat format = found.ok() ? found->value_or(TokenFormat::sluice) : TokenFormat::sluice;
  TokenFile file;
  file.path_ = path;
  file.if_damaged_ = requirements.if_damaged;
  std::string tokens_path = path;
  if (format == TokenFormat::megatron) {
    tokens_path = megatron_name(path) + ".bin";
    file.path_ = megatron_name(path) + ".idx";
    SLUICE_ASSIGN(file.index_, MappedFile::open(file.path_, requirements.owner));
  }
  SLUICE_ASSIGN(file.tokens_, MappedFile::open(tokens_path, requirements.owner));
  auto layout = layout_of(format, file.tokens_.bytes(), file.index_.bytes());
  if (!layout.ok() && layout.error().code == ErrorCode::damaged) return file.damaged(layout.error().message);
  if (!layout.ok()) return bad_request(fmt::format("{} {}", file.path_, layout.error().message));
  file.layout_ = *layout;
  if (file.has_checksums()) file.verified_ = std::make_unique<std::atomic<bool>[]>(layout->blocks());
  const std::uint64_t limit = requirements.vocabulary_limit;
  std::string wrong;
  if (limit > 0 && file.vocabulary() > limit) {
    if (file.vocabulary_known())
      wrong =
          fmt::format("has a vocabulary of {}, the model's is {}: use the model's tokenizer", file.vocabulary(), limit);
    else
      file.layout_.vocabulary = limit;
  }
  if (wrong.empty() && file.count() < requirements.tokens_min)
    wrong = fmt::format("has {} tokens, at least {} are needed", file.count(), requirements.tokens_min);
  if (!wrong.empty()) return bad_request(fmt::format("{} {}", path, wrong));
  return file;
}

Error TokenFile::damaged(const std::string& what) const {
  return bad_request(fmt::format("{} {}{}{}", path_, what, if_damaged_.empty() ? "" : "; ", if_damaged_));
}

/// Of tokens_, between its header and its checksums.
Status TokenFile::verify_bytes(std::uint64_t at, std::uint64_t count) const {
  if (!has_checksums() || count == 0) return success();
  const std::uint64_t last = layout_.block_of(at + count - 1);
  for (std::uint64_t block = layout_.block_of(at); block <= last; ++block) {
    // Nothing hangs on the order: two threads may verify the same block, and the bytes are there before either.
    if (verified_[block].load(std::memory_order_relaxed)) continue;
    const Status status = check_block(tokens_.bytes(), layout_, block);
    if (!status.ok()) return damaged(status.error().message);
    verified_[block].store(true, std::memory_order_relaxed);
  }
  return success();
}

Status TokenFile::verify() const {
  return has_checksums() ? verify_bytes(layout_.first_byte, layout_.sums_byte - layout_.first_byte) : success();
}

Result<std::uint64_t> TokenFile::hash() const {
  StreamingChecksum sum;
  sum.add(index_.bytes());
  if (!has_checksums()) {
    sum.add(tokens_.bytes());
    return sum.value();
  }
  const TokenHeader header = unsealed(load_number<TokenHeader>(tokens_.bytes(), 0));
  sum.add(std::as_bytes(std::span(&header, 1)));
  for (std::uint64_t at = layout_.first_byte; at < layout_.content_end; at += token_block_bytes) {
    const std::uint64_t part = std::min(token_block_bytes, layout_.content_end - at);
    SLUICE_TRY(verify_bytes(at, part));
    sum.add(tokens_.bytes().subspan(at, part));
  }
  return sum.value();
}

Status TokenFile::read(std::uint64_t start, std::span<std::int32_t> out) const {
  SLUICE_CHECK(start <= count() && out.size() <= count() - start, "tokens [%llu, +%zu) of %llu",
               static_cast<unsigned long long>(start), out.size(), static_cast<unsigned long long>(count()));
  if (out.empty()) return success();
  const std::uint64_t at = layout_.first_byte + start * layout_.token_bytes;
  SLUICE_TRY(verify_bytes(at, out.size() * layout_.token_bytes));
  const auto* data = tokens_.bytes().data() + at;
  std::uint32_t largest = 0;
  if (layout_.token_bytes == 1) largest = widen<std::uint8_t>(data, out);
  if (layout_.token_bytes == 2) largest = widen<std::uint16_t>(data, out);
  if (layout_.token_bytes == 4) largest = widen<std::uint32_t>(data, out);
  if (largest < vocabulary()) return success();
  std::size_t bad = 0;
  while (static_cast<std::uint32_t>(out[bad]) < vocabulary()) ++bad;
  return bad_request(fmt::format("{}: token {} at position {} is not in the vocabulary of {}", path_,
                                 static_cast<std::uint32_t>(out[bad]), start + bad, vocabulary()));
}

Status TokenFile::check_tokens(const std::function<void(double)>& watch) const {
  constexpr std::uint64_t part = 1u << 16;
  if (vocabulary_known() || vocabulary() >> (8 * token_bytes()) != 0) return success();
  std::vector<std::int32_t> tokens(std::min(part, count()));
  for (std::uint64_t at = 0; at < count(); at += part) {
    SLUICE_TRY(read(at, std::span(tokens).first(std::min(part, count() - at))));
    if (watch) watch(static_cast<double>(std::min(at + part, count())) / static_cast<double>(count()));
  }
  return success();
}

Status TokenFile::read_mask(std::uint64_t start, std::span<std::uint8_t> out) const {
  SLUICE_CHECK(start <= count() && out.size() <= count() - start, "mask of tokens [%llu, +%zu) of %llu",
               static_cast<unsigned long long>(start), out.size(), static_cast<unsigned long long>(count()));
  if (!has_mask()) {
    std::fill(out.begin(), out.end(), std::uint8_t{1});
    return success();
  }
  if (out.empty()) return success();
  const std::uint64_t first = start / 8, last = (start + out.size() - 1) / 8;
  SLUICE_TRY(verify_bytes(layout_.mask_byte + first, last - first + 1));
  const std::byte* const mask = tokens_.bytes().data() + layout_.mask_byte;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::uint64_t bit = start + i;
    out[i] = std::to_integer<std::uint8_t>(mask[bit / 8] >> bit % 8) & 1u;
  }
  return success();
}

std::uint64_t TokenFile::documents() const {
  if (layout_.documents_known) return layout_.documents;
  return count() > 0 ? 1 : 0;
}

Status TokenFile::verify_end_of(std::uint64_t document) const {
  return layout_.documents_known ? verify_bytes(layout_.ends_byte + document * 8, 8) : success();
}

/// As the table has it, verified before, or more than count() where that points outside it.
std::uint64_t TokenFile::end_of(std::uint64_t document) const {
  if (!layout_.documents_known) return count();
  const std::uint64_t at = layout_.ends_byte + document * 8;
  if (format() == TokenFormat::sluice) return load_number<std::uint64_t>(tokens_.bytes(), at);
  const auto sequence = load_number<std::uint64_t>(index_.bytes(), at + 8);
  if (sequence == layout_.sequences) return count();
  if (sequence > layout_.sequences) return count() + 1;
  return load_number<std::uint64_t>(index_.bytes(), layout_.pointers_byte + sequence * 8) / layout_.token_bytes;
}

Result<TokenFile::Document> TokenFile::document(std::uint64_t i) const {
  SLUICE_CHECK(i < documents(), "document %llu of %llu", static_cast<unsigned long long>(i),
               static_cast<unsigned long long>(documents()));
  if (i > 0) SLUICE_TRY(verify_end_of(i - 1));
  SLUICE_TRY(verify_end_of(i));
  const Document d{i == 0 ? 0 : end_of(i - 1), end_of(i)};
  const std::uint64_t n = packed_sequence();
  if (d.begin <= d.end && d.end <= count()) {
    if (n == 0 || d.begin == d.end || d.begin / n == (d.end - 1) / n) return d;
    return bad_request(fmt::format("{}: document {} has the tokens [{}, {}), which lie in more than one sequence of {}",
                                   path_, i, d.begin, d.end, n));
  }
  return bad_request(fmt::format("{}: document {} is said to have the tokens [{}, {}) of {}; make the file again",
                                 path_, i, d.begin, d.end, count()));
}

/// The first document at or behind `from` that ends behind `position`; documents() - 1 if the table has none.
Result<std::uint64_t> TokenFile::first_ending_after(std::uint64_t position, std::uint64_t from) const {
  std::uint64_t last = documents() - 1;
  while (from < last) {
    const std::uint64_t middle = from + (last - from) / 2;
    SLUICE_TRY(verify_end_of(middle));
    if (end_of(middle) > position)
      last = middle;
    else
      from = middle + 1;
  }
  return from;
}

Result<TokenFile::DocumentRange> TokenFile::documents_in(std::uint64_t start, std::uint64_t length) const {
  SLUICE_CHECK(length > 0 && start < count() && length <= count() - start, "tokens [%llu, +%llu) of %llu",
               static_cast<unsigned long long>(start), static_cast<unsigned long long>(length),
               static_cast<unsigned long long>(count()));
  SLUICE_ASSIGN(const std::uint64_t first, first_ending_after(start, 0));
  SLUICE_ASSIGN(const std::uint64_t last, first_ending_after(start + length - 1, first));
  return DocumentRange{first, last + 1};
}

}  // namespace sluice
