# Files as constants of a C++ source: cmake -DOUTPUT=x.cpp -DFILES=a.css;b.js -P embed.cmake. A file "report.css" becomes
# `const char* const report_css`.
set(text "// Made at build, by cmake/embed.cmake.\n#include \"tools/report_assets.h\"\n\nnamespace sluice::tools {\n")
foreach(file IN LISTS FILES)
  get_filename_component(name ${file} NAME)
  string(REPLACE "." "_" name ${name})
  file(READ ${file} content)
  string(APPEND text "const char* const ${name} = R\"asset(${content})asset\";\n")
endforeach()
file(WRITE ${OUTPUT} "${text}}  // namespace sluice::tools\n")
