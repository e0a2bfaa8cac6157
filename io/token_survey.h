// Token files from end to end: what is in them, and into another format.
#pragma once

#include <cstdint>
#include <functional>

#include "io/token_file.h"
#include "io/token_sink.h"
#include "sluice/status.h"

namespace sluice {

struct TokenSurvey {
  std::int32_t largest_token = -1;                         ///< -1: there is none
  std::uint64_t longest_document = 0, longest_tokens = 0;  ///< the first of the longest, and its length
  std::uint64_t empty_documents = 0;
  std::uint64_t loss_tokens = 0;  ///< that count in the loss: all of them where the file has no mask
};

/// Called now and then with the tokens done so far; its error ends the work.
using TokenWatch = std::function<Status(std::uint64_t)>;

/// Reads all of the file. bad_request for a token that is not in its vocabulary and a table that contradicts itself.
Result<TokenSurvey> survey_tokens(const TokenFile& file, const TokenWatch& watch = {});

/// All documents of `file`, with its mask, to `sink`, which is then not yet finished.
Status copy_tokens(const TokenFile& file, TokenSink& sink, const TokenWatch& watch = {});

}  // namespace sluice
