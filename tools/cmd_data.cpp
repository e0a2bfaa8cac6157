// sluice data: texts become token files, and what is in token files.
#include "tools/data_commands.h"

namespace sluice::tools {

void add_data(Command& app, Outcome& outcome) {
  Command* data = add_command(app, "data", "turn texts into token files, convert and inspect them", "");
  data->require_subcommand(1);
  add_data_tokenize(*data, outcome);
  add_data_convert(*data, outcome);
  add_data_inspect(*data, outcome);
}

}  // namespace sluice::tools
