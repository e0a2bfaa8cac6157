// What options accept. Refusals name the value and what would do.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tools/command_line.h"

namespace sluice::tools {

Validator at_least(double least);
Validator more_than(double bound);
Validator between(double least, double most);

/// One of the words, which the help then shows.
Validator one_of(std::vector<std::string> words);

/// "'fb16' is none of bf16, fp32; did you mean bf16?"
std::string none_of(const std::string& given, const std::vector<std::string>& words);

/// The value of the word that was given.
template <class Value>
Validator one_of(const std::map<std::string, Value>& values) {
  const auto refusal = [values](std::string& text) -> std::string {
    const auto found = values.find(text);
    if (found != values.end()) {
      text = std::to_string(static_cast<int>(found->second));
      return {};
    }
    std::vector<std::string> words;
    for (const auto& [word, value] : values) words.push_back(word);
    return none_of(text, words);
  };
  return {refusal, ""};
}

/// Of every option of the command and its subcommands: what no option takes is refused before its own rules are asked.
/// That is an empty value (but of `may_be_empty`), NaN and infinity, a negative number where there are none, one that
/// its type does not hold.
void refuse_impossible_values(Command& command);

}  // namespace sluice::tools
