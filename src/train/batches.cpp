#include "src/train/batches.h"

#include <algorithm>
#include <string>

#include "sluice/random.h"

namespace sluice {

std::uint64_t permuted(std::uint64_t index, std::uint64_t count, std::uint64_t key) {
  unsigned half_bits = 1;
  while ((std::uint64_t{1} << (2 * half_bits)) < count) ++half_bits;
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  do {
    std::uint64_t left = index >> half_bits, right = index & mask;
    for (std::uint64_t round = 0; round < 4; ++round) {
      const std::uint64_t mixed = left ^ (philox(key, right, round)[0] & mask);
      left = right;
      right = mixed;
    }
    index = left << half_bits | right;
  } while (index >= count);
  return index;
}

Result<TokenFile> open_data(const RunConfig& config, const ModelConfig& model) {
  TokenFile::Requirements requirements;
  requirements.vocabulary_limit = static_cast<std::uint64_t>(model.vocabulary);
  requirements.tokens_min = static_cast<std::uint64_t>(std::max<std::int64_t>(1, config.sequence)) + 1;
  return open_or_tokenize(config.data, config.run.empty() ? "" : config.run + "/tokens", requirements);
}

Result<Batches> Batches::create(const TokenFile& tokens, std::int64_t sequence, std::uint64_t seed) {
  Batches b;
  b.tokens_ = &tokens;
  b.sequence_ = static_cast<std::uint64_t>(sequence);
  b.seed_ = seed;
  const std::uint64_t windows = tokens.count() == 0 ? 0 : (tokens.count() - 1) / b.sequence_;
  if (windows < 2)
    return bad_request(tokens.path() + ": " + std::to_string(tokens.count()) + " tokens are too few for sequences of " +
                       std::to_string(sequence) + "; give at least " + std::to_string(2 * b.sequence_ + 1) +
                       " tokens or a smaller --seq");
  b.held_out_ = std::max<std::uint64_t>(1, windows / 20);
  b.training_ = windows - b.held_out_;
  return b;
}

Status Batches::training_sample(std::uint64_t sample, std::span<std::int32_t> out) const {
  const std::uint64_t epoch = sample / training_;
  const std::uint64_t window = permuted(sample % training_, training_, seed_ * 0x9E3779B97F4A7C15ull + epoch);
  return tokens_->read(window * sequence_, out);
}

Status Batches::held_out_sample(std::uint64_t sample, std::span<std::int32_t> out) const {
  return tokens_->read((training_ + sample % held_out_) * sequence_, out);
}

}  // namespace sluice
