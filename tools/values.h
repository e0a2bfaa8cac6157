// What options accept. Refusals name the value and what would do.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>

namespace sluice::tools {

CLI::Validator at_least(double least);
CLI::Validator more_than(double bound);
CLI::Validator between(double least, double most);

/// The value of the word that was given.
template <class Value>
CLI::Validator one_of(const std::map<std::string, Value>& values) {
  return CLI::Validator(
      [values](std::string& text) -> std::string {
        const auto found = values.find(text);
        if (found != values.end()) {
          text = std::to_string(static_cast<int>(found->second));
          return {};
        }
        std::string names;
        for (const auto& [name, value] : values) names += (names.empty() ? "" : ", ") + name;
        return "'" + text + "' is none of " + names;
      },
      "");
}

/// Of every option of the app and its subcommands: what no option takes is refused before its own rules are asked. That
/// is an empty value (but of `may_be_empty`), NaN and infinity, a negative number where there are none, one that its
/// type does not hold.
void refuse_impossible_values(CLI::App& app);

}  // namespace sluice::tools
