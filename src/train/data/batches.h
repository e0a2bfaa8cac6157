// Which tokens a step trains on: a pure function of (seed, global sample number).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "io/tokens/token_file.h"
#include "sluice/status.h"
#include "src/model/model.h"
#include "src/train/data/batch_row.h"
#include "src/train/data/document_rows.h"
#include "src/train/data/held_out.h"
#include "src/train/request/run_config.h"

namespace sluice {

/// config.data as tokens; a text's are made by the model's tokenizer (src/train/data/data_tokenizer.h) and kept.
/// bad_request when it has less than one window, a larger vocabulary than the model, tokens of another tokenizer, or
/// documents that are packed for sequences of another length. `note` is told what is done to a text, and when tokens
/// that were kept of one are damaged and made again; `watch` hears the progress of that, and its error ends it.
Result<TokenFile> open_data(const RunConfig& config, const ModelConfig& model,
                            const std::function<void(const std::string&)>& note = {},
                            const std::function<Status(double fraction)>& watch = {});

/// The config with `document_mask` decided, where it was left open: on for token files whose documents are packed, and
/// where --seq-schedule has phases of whole documents. And with the data's `document_length` where that is a token file
/// and the mask is on.
Result<RunConfig> with_document_mask(const RunConfig& config);

/// A token file as windows of sequence + 1 tokens, `sequence` apart: inputs, and what follows each of them. A target
/// counts in the loss if the file's mask says so and, where documents are kept apart, if it is not the first token of
/// one.
class Windows {
 public:
  Windows() = default;
  /// All of the file. `tokens` outlives it. The last token of packed documents has nothing behind it, and its window
  /// serves all the same.
  Windows(const TokenFile& tokens, std::int64_t sequence, bool documents)
      : tokens_(&tokens), sequence_(static_cast<std::uint64_t>(sequence)), documents_(documents) {
    *this = from(0);
  }

  /// The windows of the file of which the first begins at that token.
  Windows from(std::uint64_t token) const;
  /// The first of these; there are so many.
  Windows first(std::uint64_t windows) const;
  std::uint64_t count() const { return count_; }
  const TokenFile& tokens() const { return *tokens_; }
  /// `window` < count(). bad_request for tokens that are not in the vocabulary, or damaged.
  Status read(std::uint64_t window, const BatchRow& row) const;
  /// See RunConfig::document_length: of some windows, rounded to a sixteenth of a power of two.
  Result<std::int64_t> document_length() const;
  /// Whether all targets of all windows count.
  bool all_count() const { return !tokens_->has_mask() && !documents_ && tokens_->packed_sequence() == 0; }

 private:
  Status mark_documents(std::uint64_t start, const BatchRow& row) const;
  const TokenFile* tokens_ = nullptr;
  std::uint64_t sequence_ = 0;
  bool documents_ = false;
  std::uint64_t begin_ = 0, count_ = 0;  ///< the first token, and windows from there on
};

/// The windows of training and those that are held out (src/train/data/held_out.h). Every epoch visits every training
/// window once, in an order of its own that (seed, epoch) decides.
class Batches {
 public:
  /// `share`: that is held out, as hold_out takes it. bad_request when there is no room for one window of each.
  static Result<Batches> create(const TokenFile& tokens, std::int64_t sequence, std::uint64_t seed, bool documents,
                                std::optional<double> share) {
    return create(tokens, sequence, sequence, seed, documents, share);
  }
  /// Of a run at one of its phases: what is held out is so of them all.
  static Result<Batches> create(const TokenFile& tokens, const RunConfig& config, bool documents);

  /// The same with what a step trains on, which is documents in phases that have them: bad_request where there is none
  /// of such a length. Of documents the first `documents_max` at most.
  static Result<Batches> for_training(const TokenFile& tokens, const RunConfig& config, bool documents,
                                      std::uint64_t documents_max = ~std::uint64_t{0});

  const Windows& training() const { return training_; }
  const DocumentRows* rows() const { return rows_.get(); }  ///< none: windows are what is trained on
  /// Global sample `sample`. bad_request as Windows::read.
  Status read(std::uint64_t sample, const BatchRow& row) const;
  /// Whether all targets of all samples count.
  bool all_count() const { return rows_ == nullptr && training_.all_count(); }
  const Windows& held_out_windows() const { return held_out_windows_; }
  const HeldOut& held_out() const { return held_out_; }
  const TokenFile& tokens() const { return training_.tokens(); }
  /// The training window, or the row of documents, of global sample `sample`.
  std::uint64_t training_window(std::uint64_t sample) const;

 private:
  /// `border`: the length whose windows say what is held out.
  static Result<Batches> create(const TokenFile& tokens, std::int64_t sequence, std::int64_t border, std::uint64_t seed,
                                bool documents, std::optional<double> share);
  Windows training_, held_out_windows_;
  std::shared_ptr<const DocumentRows> rows_;
  HeldOut held_out_;
  std::uint64_t seed_ = 0;
};

/// What a phase of documents trains on, where `batches` has its rows; and how many documents no phase of the schedule
/// takes, empty where there are none.
std::string shown_documents(const RunConfig& config, const Batches& batches);
Result<std::string> shown_left_out(const RunConfig& config, const Batches& batches);

/// A permutation of [0, count) as a function: a Feistel network over the next power of four, walked until it lands
/// inside.
std::uint64_t permuted(std::uint64_t index, std::uint64_t count, std::uint64_t key);

}  // namespace sluice
