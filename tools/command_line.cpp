#include "tools/command_line.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "tools/refusal.h"
#include "tools/terminal.h"
#include "tools/wrap.h"

namespace sluice::tools {
namespace {

template <class T>
Validator range_of(T least, T most) {
  const CLI::Range range(least, most);
  return {[range](std::string& text) { return range(text); }, range.get_description()};
}

CLI::Validator made_of(Validator&& validator) {
  return CLI::Validator(std::move(validator.refusal), std::move(validator.shown));
}

/// Help in lines that the terminal has room for.
class WrappedHelp final : public CLI::Formatter {
 public:
  std::string make_option_desc(const CLI::Option* option) const override {
    return wrapped(CLI::Formatter::make_option_desc(option), width() - column_width_);
  }
  std::string make_subcommand(const CLI::App* command) const override {
    std::ostringstream text;
    CLI::detail::format_help(text, command->get_display_name(true),
                             wrapped(command->get_description(), width() - column_width_), column_width_);
    return text.str();
  }
  std::string make_description(const CLI::App* command) const override {
    return wrapped(CLI::Formatter::make_description(command), width());
  }
  std::string make_footer(const CLI::App* command) const override {
    return wrapped_footer(CLI::Formatter::make_footer(command), width());
  }

 private:
  static std::size_t width() { return std::clamp<std::size_t>(terminal_columns(STDOUT_FILENO), 60, 120); }
};

}  // namespace

Validator range(int least, int most) { return range_of(least, most); }
Validator range(std::uint64_t least, std::uint64_t most) { return range_of(least, most); }
Validator range(double least, double most) { return range_of(least, most); }

Option* Option::required() {
  option_->required();
  return this;
}

Option* Option::check(Validator validator) {
  option_->check(made_of(std::move(validator)));
  return this;
}

Option* Option::transform(Validator validator) {
  option_->transform(made_of(std::move(validator)));
  return this;
}

Option* Option::group(std::string_view name) {
  option_->group(std::string(name));
  return this;
}

Option* Option::description(std::string_view text) {
  option_->description(std::string(text));
  return this;
}

Option* Option::type_name(std::string_view name) {
  option_->type_name(std::string(name));
  return this;
}

Option* Option::capture_default_str() {
  option_->capture_default_str();
  return this;
}

Option* Option::default_str(std::string_view text) {
  option_->default_str(std::string(text));
  return this;
}

Option* Option::delimiter(char delimiter) {
  option_->delimiter(delimiter);
  delimiter_ = delimiter;
  return this;
}

Option* Option::expected(int values) {
  option_->expected(values);
  return this;
}

Option* Option::allow_extra_args(bool allow) {
  option_->allow_extra_args(allow);
  return this;
}

Option* Option::take_all() {
  option_->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  return this;
}

Option* Option::excludes(const Option* other) {
  option_->excludes(other->option_);
  return this;
}

Option* Option::needs(const Option* other) {
  option_->needs(other->option_);
  return this;
}

std::size_t Option::count() const { return option_->count(); }
std::string Option::get_name() const { return option_->get_name(); }
std::string Option::get_type_name() const { return option_->get_type_name(); }
bool Option::takes_values() const { return option_->get_items_expected_max() != 0 && option_->get_type_size() != 0; }

Command::Command(std::string_view description, std::string_view name)
    : app_(std::make_shared<CLI::App>(std::string(description), std::string(name))) {
  app_->formatter(std::make_shared<WrappedHelp>());  // and of its subcommands
}

Command* Command::add_subcommand(std::string_view name, std::string_view description) {
  return &subcommands_.emplace_back(std::shared_ptr<CLI::App>(
      app_, app_->add_subcommand(std::string(name), std::string(description))));  // owned by the parent
}

void Command::require_subcommand(int number) { app_->require_subcommand(number); }

void Command::set_version_flag(std::string_view name, std::string_view version) {
  app_->set_version_flag(std::string(name), std::string(version));
}

void Command::footer(std::string_view text) { app_->footer(std::string(text)); }
void Command::callback(std::function<void()> function) { app_->callback(std::move(function)); }

template <class T>
Option* Command::add_option(std::string_view name, T& value, std::string_view description) {
  return keep(app_->add_option(std::string(name), value, std::string(description)));
}

template Option* Command::add_option(std::string_view, int&, std::string_view);
template Option* Command::add_option(std::string_view, std::int64_t&, std::string_view);
template Option* Command::add_option(std::string_view, std::uint32_t&, std::string_view);
template Option* Command::add_option(std::string_view, std::uint64_t&, std::string_view);
template Option* Command::add_option(std::string_view, double&, std::string_view);
template Option* Command::add_option(std::string_view, std::optional<double>&, std::string_view);
template Option* Command::add_option(std::string_view, std::string&, std::string_view);
template Option* Command::add_option(std::string_view, std::optional<std::string>&, std::string_view);
template Option* Command::add_option(std::string_view, std::vector<int>&, std::string_view);
template Option* Command::add_option(std::string_view, std::vector<std::string>&, std::string_view);

Option* Command::add_number(std::string_view name, const std::function<void(int)>& function,
                            std::string_view description) {
  return keep(app_->add_option_function<int>(std::string(name), function, std::string(description)));
}

Option* Command::add_option_function(std::string_view name, const std::function<void(const std::string&)>& function,
                                     std::string_view description) {
  return keep(app_->add_option_function<std::string>(std::string(name), function, std::string(description)));
}

Option* Command::add_option_function(std::string_view name,
                                     const std::function<void(const std::vector<std::string>&)>& function,
                                     std::string_view description) {
  return keep(
      app_->add_option_function<std::vector<std::string>>(std::string(name), function, std::string(description)));
}

Option* Command::add_flag(std::string_view name, bool& value, std::string_view description) {
  return keep(app_->add_flag(std::string(name), value, std::string(description)));
}

Option* Command::get_option(std::string_view name) {
  const CLI::Option* option = app_->get_option(std::string(name));
  return &*std::ranges::find(options_, option, &Option::option_);
}

std::size_t Command::count(std::string_view option) const { return app_->count(std::string(option)); }

std::string Command::torn_list(const std::string& name, std::span<const char* const> words) const {
  for (const Command& sub : subcommands_)
    if (!words.empty() && words.front() == sub.app_->get_name())
      return sub.torn_list(name + " " + words.front(), words.subspan(1));
  for (const Option& option : options_) {
    if (option.delimiter_ == '\0') continue;
    const std::string long_name = option.get_name();
    for (std::size_t i = 0; i < words.size(); ++i) {
      const std::string word = words[i];
      std::string list;
      if (word == long_name && i + 1 < words.size()) list = words[i + 1];
      if (word.starts_with(long_name + "=")) list = word.substr(long_name.size() + 1);
      if (list.starts_with(option.delimiter_) || list.ends_with(option.delimiter_) ||
          list.find(std::string(2, option.delimiter_)) != std::string::npos)
        return name + ": " + long_name + ": '" + list + "' has an empty part; leave out a '" + option.delimiter_ +
               "' (see " + name + " --help)";
    }
  }
  return {};
}

Parsed Command::parse(int argc, const char* const* argv) {
  const std::string torn = torn_list(app_->get_name(), std::span(argv + std::min(argc, 1), argv + argc));
  if (!torn.empty()) return {Parsed::End::refused, torn + "\n"};
  try {
    app_->parse(argc, argv);
  } catch (const CLI::Success& request) {  // --help, --version
    std::ostringstream text;
    app_->exit(request, text, text);
    return {Parsed::End::text_was_asked_for, text.str()};
  } catch (const CLI::ParseError& error) {
    return {Parsed::End::refused, refusal(*app_, error) + "\n"};
  }
  return {};
}

void refuse_value(std::string_view option, std::string_view why) {
  throw CLI::ValidationError(std::string(option), std::string(why));
}
void refuse_without(std::string_view what) { throw CLI::RequiredError(std::string(what)); }

}  // namespace sluice::tools
