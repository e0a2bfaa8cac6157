// Sequences that are whole documents of one range of lengths: data of varied length, without a document that is cut.
#pragma once

#include <cstdint>
#include <vector>

#include "io/tokens/token_file.h"
#include "sluice/status.h"
#include "src/train/data/batch_row.h"

namespace sluice {

/// Documents have `shortest` to `longest` tokens, and end before or at token `end`.
struct DocumentRange {
  std::int64_t shortest = 0, longest = 0;
  std::uint64_t end = 0;
};

/// The length of equal documents in which the mean token sees `keys` tokens, itself among them; rounded to a sixteenth
/// of a power of two.
std::int64_t equal_documents(double keys);

/// Rows of `longest` tokens, each of documents that follow one another, as io/tokens/pack.h lays them: the first token
/// of each counts in no loss, and the rest of a row is a document of token 0 that does not either. Which documents are
/// in a row depends on their lengths and order alone. Memory beside the budgets: 4 bytes for each document and for each
/// row, and three times that while they are laid.
class DocumentRows {
 public:
  /// Of the first `documents_max` documents of the range. `tokens` outlives it. bad_request for a damaged table, and
  /// for more documents than 32 bits count.
  static Result<DocumentRows> create(const TokenFile& tokens, const DocumentRange& range,
                                     std::uint64_t documents_max = ~std::uint64_t{0});

  std::uint64_t count() const { return begins_.size() - 1; }
  std::uint64_t documents() const { return documents_.size(); }
  /// Of all documents: what is not padding.
  std::uint64_t tokens() const { return in_rows_; }
  /// `row` < count(). bad_request for tokens that are not in the vocabulary, or damaged.
  Status read(std::uint64_t row, const BatchRow& out) const;
  /// See RunConfig::document_length.
  Result<std::int64_t> document_length() const;

 private:
  const TokenFile* tokens_ = nullptr;
  std::uint64_t length_ = 0, in_rows_ = 0;
  std::vector<std::uint32_t> documents_, begins_;  ///< by rows; where each row's begin
};

}  // namespace sluice
