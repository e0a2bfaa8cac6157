#include "src/device/published_peaks.h"

#include <cctype>

namespace sluice {
namespace {

struct Peak {
  std::string_view name;  ///< part of the kind; the first that fits counts
  double bf16, f32;
};

constexpr Peak peaks[] = {
    {"H100 PCIe", 756e12, 51e12}, {"H100 NVL", 835e12, 60e12}, {"GH200", 989e12, 67e12},
    {"H100", 989e12, 67e12},      {"H200 NVL", 835e12, 60e12}, {"H200", 989e12, 67e12},
    {"H800", 989e12, 67e12},      {"H20", 148e12, 44e12},      {"A100", 312e12, 19.5e12},
    {"A800", 312e12, 19.5e12},    {"A40", 149.7e12, 37.4e12},  {"A10G", 70e12, 31.5e12},
    {"A30", 165e12, 10.3e12},     {"L40S", 362e12, 91.6e12},   {"L40", 181e12, 90.5e12},
    {"L4", 121e12, 30.3e12},      {"B200", 2250e12, 75e12},    {"RTX 4090", 165.2e12, 82.6e12},
    {"RTX 3090", 71e12, 35.6e12},
};

bool is_word_character(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

/// As whole words.
bool names(std::string_view kind, std::string_view name) {
  const std::size_t at = kind.find(name), end = at + name.size();
  if (at == std::string_view::npos) return false;
  return (at == 0 || !is_word_character(kind[at - 1])) && (end == kind.size() || !is_word_character(kind[end]));
}

}  // namespace

double published_peak_flops(std::string_view kind, Dtype dtype) {
  for (const Peak& peak : peaks)
    if (names(kind, peak.name)) return dtype == Dtype::bf16 ? peak.bf16 : peak.f32;
  return 0;
}

}  // namespace sluice
