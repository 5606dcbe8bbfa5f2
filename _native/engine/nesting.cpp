#include "nesting.h"

#include <algorithm>
#include <cctype>

namespace llamaserve {
namespace {

enum class CharacterClass { letter, digit, space, other };

// Every character beyond ASCII counts as a letter: a run is rather taken too long than too short.
CharacterClass class_of(unsigned char byte) {
    if (byte >= 0x80 || std::isalpha(byte)) {
        return CharacterClass::letter;
    }
    if (std::isdigit(byte)) {
        return CharacterClass::digit;
    }
    return std::isspace(byte) ? CharacterClass::space : CharacterClass::other;
}

bool is_continuation(unsigned char byte) { return (byte & 0xC0) == 0x80; }

bool is_word_character(char character) { return std::isalnum((unsigned char) character) || character == '_'; }

// The word that starts at or after `at`, over spaces and white-space control; moves `at` behind it.
std::string next_word(const std::string & text, size_t & at) {
    while (at < text.size() && (std::isspace((unsigned char) text[at]) || text[at] == '-' || text[at] == '+')) {
        at++;
    }
    const size_t start = at;
    while (at < text.size() && is_word_character(text[at])) {
        at++;
    }
    return text.substr(start, at - start);
}

}  // namespace

size_t longest_run(const std::string & utf8) {
    size_t         longest = 0;
    size_t         run     = 0;
    CharacterClass current = CharacterClass::other;
    for (const char character : utf8) {
        const auto byte = (unsigned char) character;
        if (is_continuation(byte)) {
            continue;
        }
        const CharacterClass next = class_of(byte);
        run                       = next == current ? run + 1 : 1;
        current                   = next;
        longest                   = std::max(longest, run);
    }
    return longest;
}

size_t template_depth(const std::string & source) {
    size_t brackets = 0;
    size_t blocks   = 0;  // open ones, and each further branch of a condition, which nests in the one before
    size_t prefixes = 0;  // "not" and signs in a row
    size_t deepest  = 0;
    for (size_t i = 0; i < source.size();) {
        const char character = source[i];
        if (character == '{' && i + 1 < source.size() && source[i + 1] == '%') {
            i += 2;
            const std::string word = next_word(source, i);
            if (word.compare(0, 3, "end") == 0) {
                blocks -= blocks > 0;
            } else if (word != "set" && word != "else" && word != "break" && word != "continue") {
                blocks++;
            }
            prefixes = 0;
        } else if (is_word_character(character)) {
            prefixes = next_word(source, i) == "not" ? prefixes + 1 : 0;
        } else {
            brackets += character == '(' || character == '[' || character == '{';
            brackets -= brackets > 0 && (character == ')' || character == ']' || character == '}');
            prefixes += character == '-' || character == '+';
            i++;
        }
        deepest = std::max(deepest, brackets + blocks + prefixes);
    }
    return deepest;
}

}  // namespace llamaserve
