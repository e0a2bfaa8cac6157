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

struct Sheet {
  std::string_view name;
  PublishedDevice device;
};

// Memory, its bandwidth, NVLink and PCI Express, each way, by NVIDIA's data sheets of the A100 (2021), H100 (2023),
// H200 (2024) and of DGX B200 (2024): SXM modules all. Shares of the peak that multiplies reach: Bekman, Machine
// Learning Engineering, table of maximum achievable matmul FLOPS (github.com/stas00/ml-engineering,
// compute/accelerator), the best of many shapes of bf16: 267.9 of 312, 794.5 of 989, 1745 of 2250 TFLOP/s.
constexpr Sheet sheets[] = {
    {"A100 40GB", {40'000'000'000, 1.555e12, 300e9, 32e9, 0.859}},
    {"A100 80GB", {80'000'000'000, 2.039e12, 300e9, 32e9, 0.859}},
    {"H100", {80'000'000'000, 3.35e12, 450e9, 64e9, 0.803}},
    {"H200", {141'000'000'000, 4.8e12, 450e9, 64e9, 0.803}},
    {"B200", {180'000'000'000, 8.0e12, 900e9, 64e9, 0.776}},
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

std::optional<PublishedDevice> published_device(std::string_view name) {
  for (const Sheet& sheet : sheets)
    if (sheet.name == name) return sheet.device;
  return std::nullopt;
}

std::string published_device_names() {
  std::string names;
  for (const Sheet& sheet : sheets) names += (names.empty() ? "" : ", ") + std::string(sheet.name);
  return names;
}

}  // namespace sluice
