#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "io/tokens/megatron.h"
#include "io/tokens/token_file.h"
#include "io/tokens/token_header.h"
#include "io/tokens/token_sink.h"

namespace sluice {
namespace {

constexpr std::size_t chunk_bytes = 1u << 20;

/// Tokens to their stored form; returns the largest.
template <class T>
std::uint32_t narrow(std::span<const std::int32_t> tokens, std::byte* out) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto token = static_cast<std::uint32_t>(tokens[i]);
    largest = std::max(largest, token);
    const T stored = static_cast<T>(token);
    std::memcpy(out + i * sizeof stored, &stored, sizeof stored);
  }
  return largest;
}

template <class T>
void add_number(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace

Result<PackedTokens> PackedTokens::create(const std::string& path, std::uint64_t vocabulary,
                                          std::uint32_t token_bytes) {
  if (vocabulary == 0 || vocabulary > 0x7fffffffu)
    return bad_request(fmt::format("a vocabulary of {} is not possible", vocabulary));
  PackedTokens tokens;
  SLUICE_ASSIGN(tokens.file_, AtomicFile::create(path));
  tokens.vocabulary_ = vocabulary;
  tokens.token_bytes_ = token_bytes;
  tokens.pending_.resize(chunk_bytes);
  return tokens;
}

Status PackedTokens::append(std::span<const std::int32_t> tokens) {
  while (!tokens.empty()) {
    if (used_ == pending_.size()) SLUICE_TRY(flush());
    const auto part = tokens.first(std::min(tokens.size(), (pending_.size() - used_) / token_bytes_));
    std::byte* out = pending_.data() + used_;
    std::uint32_t largest = 0;
    if (token_bytes_ == 1) largest = narrow<std::uint8_t>(part, out);
    if (token_bytes_ == 2) largest = narrow<std::uint16_t>(part, out);
    if (token_bytes_ == 4) largest = narrow<std::uint32_t>(part, out);
    if (largest >= vocabulary_) {
      std::size_t bad = 0;
      while (static_cast<std::uint32_t>(part[bad]) < vocabulary_) ++bad;
      return bad_request(
          fmt::format("token {} at position {} is not in the vocabulary of {}", part[bad], count_ + bad, vocabulary_));
    }
    used_ += part.size() * token_bytes_;
    count_ += part.size();
    tokens = tokens.subspan(part.size());
  }
  return success();
}

Status PackedTokens::flush() {
  SLUICE_TRY(append_bytes(std::span(pending_).first(used_)));
  used_ = 0;
  return success();
}

void PackedTokens::keep_sums() { sums_.emplace(token_block_bytes); }

Status PackedTokens::append_bytes(std::span<const std::byte> bytes) {
  if (sums_) sums_->add(bytes);
  return file_.append(bytes);
}

const std::vector<std::uint64_t>& PackedTokens::close_documents() {
  if (count_ > (ends_.empty() ? 0 : ends_.back())) end_document();
  return ends_;
}

Result<TokenWriter> TokenWriter::create(const std::string& path, std::uint64_t vocabulary,
                                        const TokenFeatures& features) {
  TokenWriter writer;
  writer.features_ = features;
  SLUICE_ASSIGN(writer.tokens_, PackedTokens::create(path, vocabulary, token_bytes_for(vocabulary)));
  const NamedTokenHeader empty{};
  SLUICE_TRY(writer.tokens_.file().append(std::as_bytes(std::span(&empty, 1)).first(writer.header_bytes())));
  writer.tokens_.keep_sums();
  return writer;
}

Status TokenWriter::put(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> mask) {
  SLUICE_CHECK(mask.empty() || (features_.mask && mask.size() == tokens.size()), "a mask of %zu for %zu tokens",
               mask.size(), tokens.size());
  const std::uint64_t before = count();
  SLUICE_TRY(tokens_.append(tokens));
  if (!features_.mask) return success();
  mask_.resize(mask_bytes(count()));
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (mask.empty() || mask[i] != 0)
      mask_[(before + i) / 8] = static_cast<std::uint8_t>(mask_[(before + i) / 8] | 1u << (before + i) % 8);
  return success();
}

/// Zeros behind `bytes` up to the next multiple of 8.
Status TokenWriter::fill_up(std::uint64_t bytes) {
  const std::byte zero[8] = {};
  return tokens_.append_bytes(std::span(zero).first(table_offset(bytes) - bytes));
}

Status TokenWriter::finish() {
  SLUICE_CHECK(features_.sequence == 0 || count() % features_.sequence == 0, "%llu tokens in sequences of %llu",
               static_cast<unsigned long long>(count()), static_cast<unsigned long long>(features_.sequence));
  SLUICE_TRY(tokens_.flush());
  const auto& ends = tokens_.close_documents();
  NamedTokenHeader named{{}, features_.tokenizer};
  TokenHeader& header = named.sealed.header;
  std::memcpy(header.magic, token_magic, sizeof header.magic);
  header.schema_version = version();
  header.token_bytes = tokens_.token_bytes();
  header.vocabulary = tokens_.vocabulary();
  header.count = count();
  header.flags = features_.mask ? token_flag_mask : 0;
  header.sequence = features_.sequence;
  if (ends.size() > 1 || features_.mask || features_.sequence > 0) header.documents = ends.size();
  SLUICE_TRY(fill_up(count() * header.token_bytes));
  if (has_table(header)) SLUICE_TRY(tokens_.append_bytes(std::as_bytes(std::span(ends))));
  SLUICE_TRY(tokens_.append_bytes(std::as_bytes(std::span(mask_))));
  SLUICE_TRY(fill_up(mask_.size()));
  const auto sums = std::as_bytes(std::span(tokens_.close_sums()));
  SLUICE_TRY(tokens_.file().append(sums));
  StreamingChecksum sum;
  sum.add(sums);
  if (features_.tokenizer != 0) sum.add(std::as_bytes(std::span(&features_.tokenizer, 1)));
  named.sealed.sums = sum.value();
  header.checksum = header_checksum(header);
  SLUICE_TRY(tokens_.file().write_at(0, std::as_bytes(std::span(&named, 1)).first(header_bytes())));
  return tokens_.file().publish();
}

Result<MegatronWriter> MegatronWriter::create(const std::string& path, std::uint64_t vocabulary) {
  MegatronWriter writer;
  writer.name_ = megatron_name(path);
  // Megatron's DType.optimal_dtype.
  SLUICE_ASSIGN(writer.tokens_, PackedTokens::create(writer.name_ + ".bin", vocabulary, vocabulary < 65500 ? 2 : 4));
  return writer;
}

Status MegatronWriter::put(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> mask) {
  SLUICE_CHECK(mask.empty(), "a mask of %zu tokens in Megatron's format", mask.size());
  return tokens_.append(tokens);
}

Result<std::string> MegatronWriter::index() {
  const auto& ends = tokens_.close_documents();
  std::string out(megatron_magic, megatron_magic_bytes);
  add_number<std::uint64_t>(out, 1);
  out += static_cast<char>(tokens_.token_bytes() == 2 ? MegatronType::uint16 : MegatronType::int32);
  add_number<std::uint64_t>(out, ends.size());
  add_number<std::uint64_t>(out, ends.size() + 1);
  out.reserve(out.size() + ends.size() * 20 + 8);
  std::uint64_t begin = 0;
  for (std::size_t d = 0; d < ends.size(); begin = ends[d++]) {
    if (ends[d] - begin > 0x7fffffffu)
      return bad_request(
          fmt::format("{}: document {} has {} tokens, a sequence of Megatron's holds 2147483647; split "
                      "the text, or write the format sluice",
                      name_, d, ends[d] - begin));
    add_number(out, static_cast<std::int32_t>(ends[d] - begin));
  }
  begin = 0;
  for (const std::uint64_t end : ends) add_number(out, std::exchange(begin, end) * tokens_.token_bytes());
  for (std::uint64_t d = 0; d <= ends.size(); ++d) add_number(out, d);
  return out;
}

Status MegatronWriter::finish() {
  SLUICE_TRY(tokens_.flush());
  SLUICE_ASSIGN(const std::string text, index());
  SLUICE_ASSIGN(AtomicFile index_file, AtomicFile::create(name_ + ".idx"));
  SLUICE_TRY(index_file.append(std::as_bytes(std::span(text))));
  // Both are there before anything old goes. An index belongs to its tokens, and there is none while the new tokens may
  // lie beside the old one.
  SLUICE_TRY(index_file.sync());
  SLUICE_TRY(tokens_.file().sync());
  SLUICE_TRY(index_file.remove_old());
  SLUICE_TRY(tokens_.file().publish());
  return index_file.publish();
}

Result<std::unique_ptr<TokenSink>> make_token_sink(TokenFormat format, const std::string& path,
                                                   std::uint64_t vocabulary, const TokenFeatures& features) {
  SLUICE_CHECK(format == TokenFormat::sluice || format == TokenFormat::megatron, "%s is not written",
               format_name(format));
  if (format == TokenFormat::megatron) {
    if (features.mask || features.sequence > 0)
      return bad_request(
          fmt::format("{}: Megatron's format can not say {}; write the format sluice", path,
                      features.mask ? "which tokens count in the loss" : "that documents are packed for sequences"));
    SLUICE_ASSIGN(MegatronWriter writer, MegatronWriter::create(path, vocabulary));
    return std::unique_ptr<TokenSink>(std::make_unique<MegatronWriter>(std::move(writer)));
  }
  SLUICE_ASSIGN(TokenWriter writer, TokenWriter::create(path, vocabulary, features));
  return std::unique_ptr<TokenSink>(std::make_unique<TokenWriter>(std::move(writer)));
}

}  // namespace sluice
