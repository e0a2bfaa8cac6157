#include "tools/commands.h"

#include <algorithm>
#include <cstdio>

#include "sluice/size.h"
#include "tools/launch.h"

namespace sluice::tools {

void Outcome::finish(const std::string& command, const Status& result) {
  if (result.ok()) return;
  status_ = result.error().code == ErrorCode::bad_request ? 2 : 1;
  if (is_first_process()) finish_alone(command, result.error());
}

void Outcome::finish_alone(const std::string& command, const Error& error) {
  std::string line = error.message;
  std::replace(line.begin(), line.end(), '\n', ' ');
  std::fprintf(stderr, "sluice %s: %s\n", command.c_str(), line.c_str());
  status_ = error.code == ErrorCode::bad_request ? 2 : 1;
}

Option* add_size(Command* app, std::string_view name, std::uint64_t* bytes, std::string_view description) {
  return app
      ->add_option_function(
          name,
          [bytes, name = std::string(name)](const std::string& text) {
            auto size = parse_size(text);
            if (!size.ok()) refuse_value(name, size.error().message);
            if (*size == 0) refuse_value(name, "0 has room for nothing; give more, or leave it out");
            *bytes = *size;
          },
          description)
      ->type_name("SIZE");
}

Result<std::vector<std::string>> split_list(const std::string& option, const std::string& text) {
  std::vector<std::string> parts;
  if (text.empty()) return parts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    if (comma == at) return bad_request(option + " '" + text + "' has an empty part; leave out a comma");
    parts.push_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  return parts;
}

Command* add_command(Command& app, std::string_view name, std::string_view description, std::string_view examples) {
  Command* command = app.add_subcommand(name, description);
  if (!examples.empty()) command->footer("Examples:\n" + std::string(examples));
  return command;
}

}  // namespace sluice::tools
