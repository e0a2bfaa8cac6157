// Token files from end to end: what is in them, and into another format.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "io/tokens/token_file.h"
#include "io/tokens/token_sink.h"
#include "sluice/status.h"

namespace sluice {

/// What fills packed sequences is no document here: token 0 from the end of the last document to the end of the
/// sequence, none of which counts in the loss.
struct TokenSurvey {
  /// Documents of about one length, and their tokens.
  struct Lengths {
    std::uint64_t documents = 0, tokens = 0;
  };
  std::uint64_t documents = 0, tokens = 0;                 ///< without padding
  std::uint64_t padding_tokens = 0;                        ///< of packed files
  std::int32_t largest_token = -1;                         ///< -1: there is none
  std::uint64_t longest_document = 0, longest_tokens = 0;  ///< the first of the longest, and its length
  std::uint64_t empty_documents = 0;
  std::array<Lengths, 65> by_length{};  ///< [i]: of more than 2^(i - 1) tokens, and no more than 2^i; without the empty
  std::uint64_t loss_tokens = 0;        ///< that count in the loss: all of them where the file has no mask
};

/// Called now and then with the tokens done so far; its error ends the work.
using TokenWatch = std::function<Status(std::uint64_t)>;

/// Reads all of the file. bad_request for a token that is not in its vocabulary and a table that contradicts itself.
Result<TokenSurvey> survey_tokens(const TokenFile& file, const TokenWatch& watch = {});

/// All documents of `file`, with its mask and what pads them, to `sink`, which is then not yet finished; and what was
/// seen of them.
Result<TokenSurvey> copy_tokens(const TokenFile& file, TokenSink& sink, const TokenWatch& watch = {});

}  // namespace sluice
