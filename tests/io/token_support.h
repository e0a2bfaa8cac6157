// What the tests of token files share: tokens, packed texts, refusals.
#pragma once

#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <random>
#include <span>
#include <string>
#include <vector>

#include "io/tokens/token_cache.h"
#include "io/tokens/token_file.h"
#include "io/tokens/token_sink.h"
#include "io/tokens/tokenize.h"
#include "support.h"
#include "tests/token_seal.h"

namespace sluice {

inline std::vector<std::int32_t> random_tokens(std::size_t count, std::uint64_t vocabulary, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::int32_t> tokens(count);
  for (std::int32_t& t : tokens) t = static_cast<std::int32_t>(random() % vocabulary);
  return tokens;
}

inline void write_tokens(const std::string& path, std::uint64_t vocabulary, std::span<const std::int32_t> tokens) {
  auto writer = TokenWriter::create(path, vocabulary);
  ASSERT_TRUE(writer.ok()) << writer.error().message;
  ASSERT_TRUE(writer->append(tokens).ok());
  ASSERT_TRUE(writer->finish().ok());
}

/// Documents of these lengths out of `tokens`, which they use up.
inline void write_documents(TokenSink& sink, std::span<const std::int32_t> tokens,
                            const std::vector<std::size_t>& lengths) {
  for (const std::size_t length : lengths) {
    ASSERT_TRUE(sink.append(tokens.first(length)).ok());
    tokens = tokens.subspan(length);
    sink.end_document();
  }
  ASSERT_TRUE(tokens.empty());
  const Status finished = sink.finish();
  ASSERT_TRUE(finished.ok()) << finished.error().message;
}

inline std::vector<std::int32_t> all_tokens(const TokenFile& file) {
  std::vector<std::int32_t> tokens(file.count());
  EXPECT_TRUE(file.read(0, tokens).ok());
  return tokens;
}

inline std::vector<std::size_t> document_lengths(const TokenFile& file) {
  std::vector<std::size_t> lengths;
  for (std::uint64_t d = 0; d < file.documents(); ++d) {
    const auto document = file.document(d);
    EXPECT_TRUE(document.ok());
    lengths.push_back(document.ok() ? document->count() : 0);
  }
  return lengths;
}

inline TokenFile open_tokens(const std::string& path, const TokenFile::Requirements& requirements = {}) {
  auto file = TokenFile::open(path, requirements);
  EXPECT_TRUE(file.ok()) << (file.ok() ? "" : file.error().message);
  return file.ok() ? std::move(*file) : TokenFile();
}

template <class T>
void expect_refused(const Result<T>& result, const std::string& part) {
  ASSERT_FALSE(result.ok()) << part;
  EXPECT_EQ(result.error().code, ErrorCode::bad_request);
  EXPECT_NE(result.error().message.find(part), std::string::npos) << result.error().message;
  EXPECT_EQ(result.error().message.find('\n'), std::string::npos) << result.error().message;
}

inline std::string gzip(const std::string& text) {
  std::string out(compressBound(text.size()) + 64, '\0');
  z_stream z{};
  EXPECT_EQ(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  z.avail_in = static_cast<uInt>(text.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

/// With a checksum of the content.
inline std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  ZSTD_CCtx* z = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(z, ZSTD_c_checksumFlag, 1);
  out.resize(ZSTD_compress2(z, out.data(), out.size(), text.data(), text.size()));
  ZSTD_freeCCtx(z);
  return out;
}

inline std::string some_text(std::size_t bytes) {
  std::string text;
  for (std::mt19937_64 random(5); text.size() < bytes;) text += "word" + std::to_string(random() % 1000) + "\xc3\xa4 ";
  return text;
}

inline std::vector<std::int32_t> as_tokens(std::string_view text) {
  std::vector<std::int32_t> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

inline void expect_text(const TokenFile& file, const std::string& text) {
  EXPECT_EQ(file.vocabulary(), 256u);
  EXPECT_TRUE(all_tokens(file) == as_tokens(text));
}

inline Result<TokenizeReport> tokenize_file(const std::string& text, const std::string& output, int threads = 1) {
  TokenizeOptions options;
  options.texts.paths = {text};
  options.output = output;
  options.threads = threads;
  return tokenize(options, byte_encoding());
}

}  // namespace sluice
