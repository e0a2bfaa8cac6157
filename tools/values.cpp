#include "tools/values.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "sluice/suggest.h"

namespace sluice::tools {
namespace {

/// Texts that may be empty: commands say themselves where they may not.
constexpr std::array<std::string_view, 2> may_be_empty{"--prompt", "--system"};

Validator number(bool (*holds)(double, double, double), double a, double b, const std::string& rule) {
  const auto refusal = [=](std::string& text) {
    return holds(std::strtod(text.c_str(), nullptr), a, b) ? "" : text + " is not " + rule;
  };
  return {refusal, ""};
}

std::string not_a_real(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || *end != 0) return "'" + text + "' is not a number";
  return std::isfinite(value) ? "" : "'" + text + "' is not a finite number";
}

std::string not_an_integer(const std::string& text, bool has_sign) {
  const std::size_t digits = text.starts_with('-') ? 1 : 0;
  if (text.size() == digits || text.find_first_not_of("0123456789", digits) != std::string::npos)
    return "'" + text + "' is not a whole number";
  if (digits == 1 && !has_sign) return text + " is negative";
  errno = 0;
  if (has_sign)
    static_cast<void>(std::strtoll(text.c_str(), nullptr, 10));
  else
    static_cast<void>(std::strtoull(text.c_str(), nullptr, 10));
  return errno == ERANGE ? text + " is too large a number" : "";
}

/// `type`: as the help shows it.
std::string impossible(const std::string& type, bool empty_is_fine, const std::string& text) {
  if (text.empty()) return empty_is_fine ? "" : "its value is empty; give one, or leave the option out";
  if (type == "FLOAT" || type == "SHARE") return not_a_real(text);
  if (type == "INT") return not_an_integer(text, true);
  if (type == "UINT" || type == "N" || type == "N[,N]" || type == "T[,T]") return not_an_integer(text, false);
  return {};
}

}  // namespace

Validator at_least(double least) {
  return number([](double v, double a, double) { return v >= a; }, least, 0, fmt::format("{:g} or more", least));
}

Validator more_than(double bound) {
  return number([](double v, double a, double) { return v > a; }, bound, 0, fmt::format("more than {:g}", bound));
}

Validator between(double least, double most) {
  return number([](double v, double a, double b) { return v >= a && v <= b; }, least, most,
                fmt::format("from {:.9g} to {:.9g}", least, most));
}

std::string none_of(const std::string& given, const std::vector<std::string>& words) {
  return fmt::format("'{}' is none of {}{}", given, fmt::join(words, ", "), did_you_mean(given, words));
}

Validator one_of(std::vector<std::string> words) {
  const std::string shown = fmt::format("{{{}}}", fmt::join(words, ","));
  const auto refusal = [words = std::move(words)](std::string& text) {
    return std::ranges::find(words, text) != words.end() ? "" : none_of(text, words);
  };
  return {refusal, shown};
}

void refuse_impossible_values(Command& command) {
  for (Option& option : command.options()) {
    if (!option.takes_values()) continue;
    const std::string shown = option.get_type_name();
    const std::string type = shown.substr(0, shown.find(':'));
    const bool fine = std::ranges::find(may_be_empty, option.get_name()) != may_be_empty.end();
    // A transform comes before all other rules.
    option.transform({[=](std::string& text) { return impossible(type, fine, text); }, ""});
  }
  for (Command& sub : command.subcommands()) refuse_impossible_values(sub);
}

}  // namespace sluice::tools
