#include "tools/checkpoint_commands.h"

namespace sluice::tools {

RestoreListener on_line(ProgressLine& line, const std::atomic<bool>& stop) {
  return {[&line](const std::string& text) { line.note(text); },
          [&line, &stop](const std::string& what) -> States::Watch {
            return [&line, &stop, what](double fraction) -> Status {
              line.task(what, fraction);
              if (!stop.load()) return success();
              return Error{ErrorCode::cancelled, "stopped by a signal while " + what};
            };
          }};
}

}  // namespace sluice::tools
