// Which tokenizer it is, by what it does to a text and not by how its file is written.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

namespace sluice {

/// `json`: a tokenizer.json that was read without an error, or what stands for one. `tokens`: [id], its vocabulary and
/// added tokens. Never 0.
std::uint64_t hash_of_tokenizer(const nlohmann::json& json, std::span<const std::string> tokens);

}  // namespace sluice
