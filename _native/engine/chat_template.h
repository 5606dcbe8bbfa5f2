// A model's chat template, over llama.cpp's common/chat: conversations become text, and the answers to them get a syntax.
// Immutable; any thread.
//
// What a template writes around reasoning and tool calls is found out by rendering it some dozen times. That happens once,
// here; templates that llama.cpp knows by name need none of it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "chat-auto-parser.h"
#include "chat.h"
#include "chat_syntax.h"
#include "model.h"

namespace llamaserve {

// How far a template goes with tools.
enum class ToolSupport {
    native,      // it describes tools, and writes calls and results
    calls_only,  // it writes calls and results, but tells the model of no tool
    none,        // neither; calls have a form of our own
};

// What is rendered. The JSON texts are the caller's, in OpenAI's shapes.
struct Conversation {
    std::string messages;                      // an array
    std::string tools;                         // an array; empty = none
    bool        must_call      = false;        // an answer has to call a tool
    bool        parallel_calls = false;        // an answer may call several
    bool        add_generation_prompt = true;  // end where the answer begins
    bool        continue_final    = false;     // the last message is the beginning of the answer
    bool        enable_thinking   = true;
    bool        extract_reasoning = true;      // reasoning is a part of its own, not content
    std::map<std::string, std::string> variables;  // of the template, by name; JSON texts
};

struct CallTrigger {
    bool        is_pattern;  // a regular expression, else a word
    std::string value;
};

struct RenderedChat {
    std::string                 prompt;
    std::vector<std::string>    stops;              // strings that end an answer, besides the model's own tokens
    std::string                 generation_prompt;  // what of the answer stands at the end of the prompt
    std::vector<std::string>    preserved;          // texts of tokens that mark parts of the answer
    std::vector<CallTrigger>    triggers;           // what a tool call begins with, where one may come or not
    std::string                 reasoning_start;    // texts around the reasoning; empty where the template has none
    std::string                 reasoning_end;
    // How the answer is read; empty where all of it is content.
    std::shared_ptr<const ChatSyntax> syntax;
};

class ChatTemplate {
public:
    // The model's own template, or `source` if it is not empty. Throws TemplateError when there is none, or one that does
    // not parse.
    explicit ChatTemplate(std::shared_ptr<Model> model, const std::string & source = "");

    // Throws TemplateError when the template refuses the messages.
    RenderedChat render(const Conversation & conversation) const;

    ToolSupport tool_support() const { return tool_variant().support; }
    bool        calls_in_parallel() const { return tool_variant().calls_in_parallel; }

private:
    // The template that is used with tools, and the one without, may differ.
    struct Variant {
        std::shared_ptr<common_chat_template>         parsed;
        std::shared_ptr<const autoparser::autoparser> analysis;  // none where llama.cpp knows the template by name
        ToolSupport support           = ToolSupport::none;
        bool        calls_in_parallel = false;
    };

    static Variant analyse(const std::string & source);

    const Variant &    tool_variant() const { return with_tools_ ? *with_tools_ : plain_; }
    RenderedChat       render_here(const Conversation & conversation) const;
    common_chat_params apply(const common_chat_templates_inputs & inputs, const Variant & variant) const;

    std::shared_ptr<Model>    model_;
    common_chat_templates_ptr templates_;
    Variant                   plain_;
    std::unique_ptr<Variant>  with_tools_;
};

}  // namespace llamaserve
