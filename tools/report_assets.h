// What a report is drawn with: tools/report/*, embedded at build.
#pragma once

namespace sluice::tools {

extern const char* const report_css;
extern const char* const base_js;
extern const char* const memory_js;
extern const char* const lanes_js;
extern const char* const passes_js;
extern const char* const curves_js;

}  // namespace sluice::tools
