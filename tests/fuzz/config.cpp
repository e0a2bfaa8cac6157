// config.json of a model: refused in one line, or a shape that fits together.
#include "src/model/model.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto config = sluice::parse_hf_config(std::string(reinterpret_cast<const char*>(data), size), "config.json");
  if (!config.ok()) {
    sluice::fuzz::check_refusal(config.error());
    return 0;
  }
  SLUICE_CHECK(config->vocabulary > 0 && config->hidden > 0 && config->layers > 0, "an empty model");
  SLUICE_CHECK(config->heads > 0 && config->kv_heads > 0 && config->heads % config->kv_heads == 0, "heads");
  SLUICE_CHECK(config->head_dim > 0 && config->ffn > 0 && config->max_positions > 0, "sizes");
  return 0;
}
