#include "io/tokens/tokenize.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "io/tokens/encode_pool.h"
#include "io/tokens/token_file.h"
#include "io/tokens/token_sink.h"
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

/// A file that documents go to, in sequences where they are packed.
class Output {
 public:
  static Result<Output> create(const std::string& path, const TokenizeOptions& options, const TextEncoding& encoding) {
    Output o;
    o.report_.path = path;
    o.has_mask_ = encoding.has_mask;
    const TokenFeatures features{.mask = encoding.has_mask || options.pack.has_value(),
                                 .sequence = options.pack ? options.pack->sequence : 0,
                                 .tokenizer = encoding.tokenizer};
    SLUICE_ASSIGN(o.sink_, make_token_sink(options.format, path, encoding.vocabulary, features));
    if (!options.pack) return o;
    PackOptions pack = *options.pack;
    pack.keep_rest = !encoding.has_mask;
    o.packer_ = std::make_unique<SequencePacker>(*o.sink_, pack);
    return o;
  }

  Status append(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> mask) {
    if (packer_ != nullptr) return packer_->add(tokens, mask);
    report_.tokens += tokens.size();
    if (has_mask_)
      report_.loss_tokens +=
          mask.empty() ? tokens.size() : static_cast<std::uint64_t>(std::count(mask.begin(), mask.end(), 1));
    return sink_->append(tokens, mask);
  }
  Status end_document() {
    if (packer_ == nullptr) {
      sink_->end_document();
      ++report_.documents;
      return success();
    }
    SLUICE_TRY(packer_->end_document());
    take_packers_report();
    return success();
  }
  /// What is not yet in the file, so that its size is known before any file appears.
  Status flush() {
    if (packer_ == nullptr) return success();
    SLUICE_TRY(packer_->finish());
    take_packers_report();
    return success();
  }
  Status finish() { return sink_->finish(); }
  const TokenizeReport::Output& report() const { return report_; }
  bool has_mask() const { return has_mask_; }

 private:
  void take_packers_report() {
    report_.pack = packer_->report();
    report_.documents = report_.pack.documents;
    report_.tokens = report_.pack.tokens;
    report_.loss_tokens = report_.pack.loss_tokens;
  }

  TokenizeReport::Output report_;
  bool has_mask_ = false;
  std::unique_ptr<TokenSink> sink_;
  std::unique_ptr<SequencePacker> packer_;
};

/// Sends the documents to their files.
class Outputs {
 public:
  static Result<Outputs> create(const TokenizeOptions& options, const TextEncoding& encoding) {
    Outputs o;
    o.options_ = &options;
    o.report_.vocabulary = encoding.vocabulary;
    SLUICE_ASSIGN(o.training_, Output::create(options.output, options, encoding));
    if (options.held_out > 0) {
      SLUICE_ASSIGN(o.held_out_, Output::create(eval_output(options.output), options, encoding));
    }
    return o;
  }

  Status add(const EncodeBatch& batch, const TextSource& source) {
    std::size_t begin = 0;
    for (std::size_t i = 0; i < batch.used; ++i) {
      const TextPiece& piece = batch.pieces[i];
      const std::size_t length = batch.ends[i] - begin;
      const bool held_out = is_held_out(options_->seed, piece.document, options_->held_out);
      const std::span<const std::uint8_t> mask(batch.mask);
      const Status added =
          add(std::span(batch.tokens).subspan(begin, length), mask.empty() ? mask : mask.subspan(begin, length),
              piece.last, held_out ? *held_out_ : *training_);
      if (!added.ok()) return options_->pack ? added.error().in(source.where(piece)) : added;
      begin = batch.ends[i];
    }
    report_.text_bytes += batch.text_bytes;
    return success();
  }

  Status finish() {
    SLUICE_TRY(training_->flush());
    if (held_out_) SLUICE_TRY(held_out_->flush());
    const TokenizeReport all = report();
    const std::uint64_t documents = all.training.documents + all.held_out.documents;
    const std::uint64_t dropped = all.training.pack.too_long + all.held_out.pack.too_long;
    if (documents == 0 && dropped > 0 && options_->pack->too_long == TooLong::drop)
      return bad_request(
          fmt::format("no document is left: {} of more than {} tokens dropped; pack longer sequences, or cut "
                      "what is too long",
                      dropped, options_->pack->sequence));
    if (documents == 0)
      return bad_request(training_->has_mask() ? "the inputs hold nothing to learn: no turn of an assistant counts"
                                               : "the inputs hold no text");
    for (const auto* output : {&all.training, &all.held_out})
      if (!output->path.empty() && output->documents == 0)
        return bad_request(
            fmt::format("no document is left for {} with a share of {} held out of {}; change the share "
                        "or the seed",
                        output->path, options_->held_out, documents));
    if (options_->before_publishing) SLUICE_TRY(options_->before_publishing());
    SLUICE_TRY(training_->finish());
    return held_out_ ? held_out_->finish() : success();
  }

  TokenizeReport report() const {
    TokenizeReport all = report_;
    all.training = training_->report();
    if (held_out_) all.held_out = held_out_->report();
    return all;
  }
  void set_input(std::uint64_t bytes, std::uint64_t total) {
    report_.input_bytes = bytes;
    report_.input_bytes_total = total;
  }

 private:
  Status add(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> mask, bool last, Output& output) {
    SLUICE_TRY(output.append(tokens, mask));
    document_tokens_ += tokens.size();
    if (!last) return success();
    if (std::exchange(document_tokens_, 0) == 0) {
      ++report_.empty_documents;
      return success();
    }
    if (options_->end_of_text) SLUICE_TRY(output.append(std::span(&*options_->end_of_text, 1), {}));
    return output.end_document();
  }

  const TokenizeOptions* options_ = nullptr;
  std::optional<Output> training_, held_out_;
  std::uint64_t document_tokens_ = 0;  ///< of the document that is not yet over
  TokenizeReport report_;              ///< but what the outputs know
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
  return {.vocabulary = 256, .whole_documents = false, .tokenizer = byte_tokenizer, .make_encoder = [] {
            return std::make_unique<ByteEncoder>();
          }};
}

TextEncoding tokenizer_encoding(const std::shared_ptr<const Tokenizer>& tokenizer, bool add_special) {
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
  return {.vocabulary = tokenizer->vocabulary(),
          .whole_documents = true,
          .tokenizer = tokenizer->hash(),
          .make_encoder = [tokenizer, add_special] { return std::make_unique<Encoder>(tokenizer, add_special); }};
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
    SLUICE_TRY(outputs.add(done, source));
    outputs.set_input(source.bytes_read(), source.bytes_total());
    if (watch) SLUICE_TRY(watch(outputs.report()));
    pool.release_oldest();
  }
  if (!reading.ok()) return reading.error();
  SLUICE_TRY(outputs.finish());
  return outputs.report();
}

}  // namespace sluice
