// How an answer of one conversation is read: llama.cpp's parser for it, prepared to say which text is still open.
// Immutable; any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "chat.h"

namespace llamaserve {

// The part of a message that the text at its end belongs to.
enum class OpenPart {
    content,
    reasoning,
    string_argument,  // written without quotes, between tags
    json_arguments,   // all arguments of a call, as one JSON object
};

// A part that goes on for as long as none of its delimiters comes.
struct OpenText {
    OpenPart                         part;
    size_t                           start;       // in the text that was parsed
    size_t                           end;         // behind it may stand the beginning of a delimiter
    const std::vector<std::string> * delimiters;  // the syntax's; null for JSON, which ends with its last bracket
};

// A text, parsed as far as it goes.
struct ParsedAnswer {
    common_chat_msg         message;
    std::optional<OpenText> open;
    size_t                  n_used = 0;  // bytes up to the last that is in the message
};

class ChatSyntax {
public:
    // `parser` is what llama.cpp's templates give, `generation_prompt` the text before the answer that it starts from.
    ChatSyntax(std::string parser, common_chat_format format, std::string generation_prompt);

    // Nothing where the text, which begins with the generation prompt, does not fit. Recursion as deep as its brackets.
    std::optional<ParsedAnswer> parse(const std::string & text) const;

    const std::string & generation_prompt() const { return generation_prompt_; }
    // The parser as JSON, as it was given.
    const std::string & parser() const { return parser_; }

private:
    std::optional<OpenText> open_text(const common_peg_parse_context & context, const common_peg_parse_result & result,
                                      size_t & n_used) const;

    std::string        parser_;
    common_peg_arena   arena_;
    common_chat_format format_;
    std::string        generation_prompt_;
};

}  // namespace llamaserve
