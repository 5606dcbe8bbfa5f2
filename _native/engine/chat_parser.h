// An answer while it is written: text in, what it adds to the message out. One thread at a time.
//
// llama.cpp parses whole texts, so parsing again after each token would cost the square of the answer. Most tokens only make
// the part longer that is open at the end: those are added to it without parsing. The text is parsed again where the open
// part may end, and then only as often as the length of the text allows: all parsing of an answer stays linear in it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chat_syntax.h"

namespace llamaserve {

struct ToolCallDelta {
    size_t                     index;
    std::optional<std::string> name;  // with the first part of a call; so is the id
    std::string                id;    // the model's own, where it wrote one
    std::string                arguments;
};

struct MessageDelta {
    std::string                content;
    std::string                reasoning;
    std::vector<ToolCallDelta> calls;
};

// Follows the brackets of a JSON object as its text comes.
class JsonDepth {
public:
    // How many bytes belong to the object: all of them while it is open.
    size_t take(std::string_view text);

    bool is_closed() const { return is_closed_; }

private:
    size_t depth_     = 0;
    bool   in_string_ = false;
    bool   escaped_   = false;
    bool   is_closed_ = false;
};

class ChatParser {
public:
    explicit ChatParser(std::shared_ptr<const ChatSyntax> syntax);

    // What the next text adds. A text that does not fit the syntax is content.
    MessageDelta feed(const std::string & text);

    // What was held back. The answer is over.
    MessageDelta finish();

    bool has_tool_calls() const { return !given_.tool_calls.empty(); }

    // How many bytes were parsed in total, those of an answer again each time.
    size_t n_parsed() const { return n_parsed_; }

private:
    void note_nesting(const std::string & text);
    bool may_parse() const;
    std::optional<ParsedAnswer> parsed(const std::string & text);
    void                        parse();
    bool is_begun_blank() const;
    void extend(bool is_last);
    void extend_until_delimiter(bool is_last);
    void extend_json();
    void add_text(std::string_view text);

    void give_message(const common_chat_msg & message);
    void give_call(size_t index, const common_chat_tool_call & call);
    void give_rest();
    void give_held_back();

    MessageDelta take_delta();

    std::shared_ptr<const ChatSyntax> syntax_;
    std::string                       text_;   // with the generation prompt
    common_chat_msg                   given_;  // what all deltas so far add up to
    MessageDelta                      delta_;  // of the call that runs
    std::string                       blank_content_;  // white space that is content only if nothing else comes

    std::optional<OpenText> open_;      // what goes on at the end of the text; its end is how far it was given out
    JsonDepth               json_;      // of the open JSON object
    size_t                  n_used_;    // bytes of the text that are in the message
    bool                    is_stale_;  // whether text came that neither was parsed nor belongs to an open part

    size_t n_parsed_ = 0;
    size_t nesting_  = 0;  // brackets open at the end of the text, wherever they stand
    size_t deepest_  = 0;
};

}  // namespace llamaserve
