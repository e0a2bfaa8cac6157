// Documents laid whole into sequences of one length, so that no sequence has half of one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "io/tokens/best_fit.h"
#include "io/tokens/token_sink.h"
#include "sluice/status.h"

namespace sluice {

/// What becomes of a document that is longer than a sequence.
enum class TooLong : std::uint8_t { cut, drop, refuse };

struct PackOptions {
  std::uint64_t sequence = 0;  ///< tokens; at least 2
  TooLong too_long = TooLong::cut;
  /// Of what was cut, the rest is documents of its own (text); else it is left out (conversations, which make no sense
  /// from their middle on).
  bool keep_rest = true;
};

struct PackReport {
  std::uint64_t documents = 0;    ///< laid into sequences; each piece of one that was cut counts
  std::uint64_t tokens = 0;       ///< of them
  std::uint64_t loss_tokens = 0;  ///< of those
  std::uint64_t sequences = 0, padding_tokens = 0;
  std::uint64_t too_long = 0, lost_tokens = 0;  ///< documents that were cut or dropped; what was not written of them
  std::uint64_t unlearned = 0;                  ///< left out: nothing in them counts in the loss
};

/// Documents go where they fit best (io/tokens/best_fit.h); what is closed is padded and written. The result depends on
/// the documents and their order alone. Memory: 64 MiB of open sequences, or 8 of them. One thread.
///
/// The rest of a sequence is token 0, a document that does not count in the loss. The first token of each document does
/// not count either: there is nothing in its sequence that it could be predicted from.
class SequencePacker {
 public:
  /// `sink` keeps a mask, and outlives the packer.
  SequencePacker(TokenSink& sink, const PackOptions& options);

  /// More of a document; `mask` as TokenSink takes it. bad_request where it is too long and that is refused.
  Status add(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> mask);
  Status end_document();
  /// All that is open; the sink is not finished.
  Status finish();
  const PackReport& report() const { return report_; }

 private:
  struct Sequence {
    std::vector<std::int32_t> tokens;
    std::vector<std::uint8_t> mask;
    std::vector<std::size_t> ends;
  };
  Status place();
  Status write(Sequence& sequence);

  TokenSink& sink_;
  PackOptions options_;
  BestFit<Sequence> open_;
  std::vector<std::int32_t> tokens_;  ///< of the document that is not yet over
  std::vector<std::uint8_t> mask_;
  bool over_ = false;  ///< it is longer than a sequence
  PackReport report_;
};

}  // namespace sluice
