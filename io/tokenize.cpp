#include "io/tokenize.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "io/encode_pool.h"
#include "io/token_sink.h"
#include "sluice/random.h"

namespace sluice {
namespace {

constexpr std::size_t batch_bytes = 1u << 20;
constexpr std::uint64_t hold_out_stream = 0x68656c64;  ///< of the random numbers of a seed

class ByteEncoder final : public TextEncoder {
 public:
  Status encode(std::string_view text, std::vector<std::int32_t>& tokens) override {
    const std::size_t before = tokens.size();
    tokens.resize(before + text.size());
    std::transform(text.begin(), text.end(), tokens.begin() + static_cast<std::ptrdiff_t>(before),
                   [](char c) { return static_cast<std::int32_t>(static_cast<unsigned char>(c)); });
    return success();
  }
};

/// Sends the documents to their files.
class Outputs {
 public:
  static Result<Outputs> create(const TokenizeOptions& options, const TextEncoding& encoding) {
    Outputs o;
    o.options_ = &options;
    o.report_.vocabulary = encoding.vocabulary;
    o.report_.training.path = options.output;
    SLUICE_ASSIGN(o.training_, make_token_sink(options.format, options.output, encoding.vocabulary));
    if (options.held_out > 0) {
      o.report_.held_out.path = eval_output(options.output);
      SLUICE_ASSIGN(o.held_out_, make_token_sink(options.format, o.report_.held_out.path, encoding.vocabulary));
    }
    return o;
  }

  Status add(const EncodeBatch& batch) {
    std::size_t begin = 0;
    for (std::size_t i = 0; i < batch.used; ++i) {
      const TextPiece& piece = batch.pieces[i];
      const auto tokens = std::span(batch.tokens).subspan(begin, batch.ends[i] - begin);
      begin = batch.ends[i];
      const bool held_out = is_held_out(options_->seed, piece.document, options_->held_out);
      SLUICE_TRY(
          add(tokens, piece.last, held_out ? *held_out_ : *training_, held_out ? report_.held_out : report_.training));
    }
    report_.text_bytes += batch.text_bytes;
    return success();
  }

  Status finish() {
    if (report_.training.documents + report_.held_out.documents == 0) return bad_request("the inputs hold no text");
    for (const auto* output : {&report_.training, &report_.held_out})
      if (!output->path.empty() && output->documents == 0)
        return bad_request(
            fmt::format("no document is left for {} with a share of {} held out of {}; change the share "
                        "or the seed",
                        output->path, options_->held_out, report_.training.documents + report_.held_out.documents));
    if (options_->before_publishing) SLUICE_TRY(options_->before_publishing());
    SLUICE_TRY(training_->finish());
    return held_out_ != nullptr ? held_out_->finish() : success();
  }

  TokenizeReport& report() { return report_; }

 private:
  Status add(std::span<const std::int32_t> tokens, bool last, TokenSink& sink, TokenizeReport::Output& output) {
    SLUICE_TRY(sink.append(tokens));
    output.tokens += tokens.size();
    document_tokens_ += tokens.size();
    if (!last) return success();
    if (std::exchange(document_tokens_, 0) == 0) {
      ++report_.empty_documents;
      return success();
    }
    if (options_->end_of_text) {
      SLUICE_TRY(sink.append(std::span(&*options_->end_of_text, 1)));
      ++output.tokens;
    }
    sink.end_document();
    ++output.documents;
    return success();
  }

  const TokenizeOptions* options_ = nullptr;
  std::unique_ptr<TokenSink> training_, held_out_;
  std::uint64_t document_tokens_ = 0;  ///< of the document that is not yet over
  TokenizeReport report_;
};

/// Pieces for one turn of an encoder; none at the end of the texts.
Status fill(EncodeBatch& batch, TextSource& source) {
  batch.used = 0;
  for (std::size_t bytes = 0; bytes < batch_bytes; ++batch.used) {
    if (batch.used == batch.pieces.size()) batch.pieces.emplace_back();
    TextPiece& piece = batch.pieces[batch.used];
    SLUICE_ASSIGN(const bool found, source.next(piece));
    if (!found) break;
    bytes += std::max<std::size_t>(piece.data.size(), 1);
  }
  return success();
}

}  // namespace

TextEncoding byte_encoding() {
  return {.vocabulary = 256, .whole_documents = false, .make_encoder = [] { return std::make_unique<ByteEncoder>(); }};
}

TextEncoding tokenizer_encoding(std::shared_ptr<const Tokenizer> tokenizer, bool add_special) {
  class Encoder final : public TextEncoder {
   public:
    Encoder(std::shared_ptr<const Tokenizer> t, bool special)
        : tokenizer_(std::move(t)), encoder_(*tokenizer_), special_(special) {}
    Status encode(std::string_view text, std::vector<std::int32_t>& tokens) override {
      return encoder_.encode(text, special_, tokens);
    }

   private:
    std::shared_ptr<const Tokenizer> tokenizer_;
    Tokenizer::Encoder encoder_;
    bool special_;
  };
  return {.vocabulary = tokenizer->vocabulary(), .whole_documents = true, .make_encoder = [tokenizer, add_special] {
            return std::make_unique<Encoder>(tokenizer, add_special);
          }};
}

std::string eval_output(const std::string& output) {
  const std::filesystem::path path(output);
  return (path.parent_path() / (path.stem().string() + ".eval" + path.extension().string())).string();
}

bool is_held_out(std::uint64_t seed, std::uint64_t number, double share) {
  return share > 0 && philox_uniform(seed, number, hold_out_stream) < share;
}

Result<TokenizeReport> tokenize(const TokenizeOptions& options, const TextEncoding& encoding,
                                const std::function<Status(const TokenizeReport&)>& watch) {
  TextSource::Options texts = options.texts;
  texts.part_bytes = encoding.whole_documents ? 0 : batch_bytes;
  SLUICE_ASSIGN(TextSource source, TextSource::open(std::move(texts)));
  SLUICE_ASSIGN(Outputs outputs, Outputs::create(options, encoding));
  EncodePool pool(source, encoding, options.threads);
  Status reading = success();
  bool more = true;
  while (more || pool.busy() > 0) {
    if (more && pool.busy() < pool.capacity()) {
      EncodeBatch& batch = pool.next_free();
      reading = fill(batch, source);
      more = reading.ok() && batch.used > 0;
      // Also what was read before a failure: something wrong in it comes first.
      if (batch.used > 0) pool.start(batch);
      continue;
    }
    const EncodeBatch& done = pool.wait_for_oldest();
    SLUICE_TRY(done.result);
    SLUICE_TRY(outputs.add(done));
    outputs.report().input_bytes = source.bytes_read();
    outputs.report().input_bytes_total = source.bytes_total();
    if (watch) SLUICE_TRY(watch(outputs.report()));
    pool.release_oldest();
  }
  if (!reading.ok()) return reading.error();
  SLUICE_TRY(outputs.finish());
  return outputs.report();
}

}  // namespace sluice
