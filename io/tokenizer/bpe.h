// Byte pair encoding (Sennrich et al., arXiv 1508.07909): of a word's adjacent tokens, the pair whose merge was learnt
// first becomes one token, the leftmost of equals first, until no pair is known.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sluice/status.h"

namespace sluice {

struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
};
template <class T>
using StringMap = std::unordered_map<std::string, T, StringHash, std::equal_to<>>;

class Bpe {
 public:
  /// `json`: the file's "model". `byte_level`: its vocabulary writes bytes as characters.
  static Result<Bpe> from(const nlohmann::json& json, bool byte_level);

  const StringMap<std::int32_t>& vocabulary() const { return vocabulary_; }  ///< as the file writes it

  /// Of one thread; the model outlives it. Remembers words.
  class Encoder {
   public:
    explicit Encoder(const Bpe& bpe) : bpe_(bpe) {}
    void encode(std::string_view word, std::vector<std::int32_t>& ids);

   private:
    struct Known {
      std::uint64_t hash = 0;
      std::uint32_t text = 0, text_bytes = 0, ids = 0, ids_count = 0;
    };
    struct Symbol {
      std::int32_t id, previous, next;  ///< places; next of a merged one is -2
    };
    void encode_new(std::string_view word, std::vector<std::int32_t>& ids);
    void first_ids(std::string_view word);
    void merge_short(std::vector<std::int32_t>& ids);
    void merge_long(std::vector<std::int32_t>& ids);
    void make_room();
    std::size_t free_place(std::uint64_t hash) const;
    void remember(std::uint64_t hash, std::string_view word, const std::int32_t* ids, std::size_t count);

    const Bpe& bpe_;
    std::vector<std::int32_t> symbols_;
    std::vector<std::uint32_t> ranks_;
    std::vector<Symbol> chain_;
    struct Candidate {
      std::uint32_t rank;
      std::int32_t place, id;
    };
    std::vector<Candidate> heap_;
    std::vector<Known> known_;
    std::size_t known_count_ = 0;
    std::string texts_;
    std::vector<std::int32_t> ids_;
  };

 private:
  struct Merge {
    std::uint64_t pair = ~0ull;
    std::uint32_t rank = ~0u;
    std::int32_t id = -1;
  };
  static constexpr std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
  }
  const Merge* find(std::int32_t left, std::int32_t right) const;
  Status add_merges(const nlohmann::json& merges);
  void read_bytes(bool byte_fallback);
  void insert(const Merge& merge);

  bool byte_level_ = false, ignore_merges_ = false, fuse_unknown_ = false;
  bool cut_at_spaces_ = false;  ///< no token goes on behind a character with a U+2581
  std::int32_t unknown_ = -1;
  StringMap<std::int32_t> vocabulary_;
  StringMap<std::int32_t> words_;          ///< tokens as the bytes they stand for
  std::array<std::int32_t, 256> bytes_{};  ///< ids of single bytes, -1 where there is none
  bool all_bytes_ = false;
  std::vector<Merge> merges_;  ///< open addressing, a power of two
};

/// GPT-2's characters for bytes: printable ones stand for themselves, the others follow from U+0100 on.
const std::array<std::string, 256>& byte_characters();
/// The bytes that a token's characters stand for; false if one is none of them.
bool bytes_of_characters(std::string_view token, std::string& bytes);

}  // namespace sluice
