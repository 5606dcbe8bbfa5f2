// A model's chat template, rendered by llama.cpp's common/chat. Immutable; any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "chat.h"
#include "model.h"

namespace llamaserve {

struct RenderedChat {
    std::string              prompt;
    std::vector<std::string> stops;  // strings that end an answer of this template, besides the model's own tokens
};

class ChatTemplate {
public:
    // Throws TemplateError when the model has no template, or one that does not parse.
    explicit ChatTemplate(std::shared_ptr<Model> model);

    // `messages_json` is an array of OpenAI messages. Throws TemplateError when the template refuses them.
    RenderedChat render(const std::string & messages_json, bool add_generation_prompt) const;

private:
    std::shared_ptr<Model>    model_;
    common_chat_templates_ptr templates_;
};

}  // namespace llamaserve
