// How deep the recursion of llama.cpp's parsers goes on a text. Pure.
#pragma once

#include <cstddef>
#include <string>

namespace llamaserve {

// Characters in the longest stretch of letters, of digits, of white space or of the rest. No match of a
// pre-tokeniser's regular expression is much longer.
size_t longest_run(const std::string & utf8);

// Upper bound of the nesting of a Jinja template: brackets, blocks, and chains of prefix operators.
size_t template_depth(const std::string & source);

}  // namespace llamaserve
