"""The requests that the providers' official clients can send, by their types. Importing this takes seconds."""

from __future__ import annotations

from typing import Any

from anthropic.types import (
    Base64ImageSourceParam,
    DocumentBlockParam,
    ImageBlockParam,
    JSONOutputFormatParam,
    OutputConfigParam,
    TextBlockParam,
    ThinkingConfigAdaptiveParam,
    ThinkingConfigEnabledParam,
    ToolChoiceAutoParam,
    ToolParam,
    ToolResultBlockParam,
    ToolUseBlockParam,
    UserMessageParam,
)
from anthropic.types.beta import message_create_params as beta_messages
from anthropic.types.message_create_params import MessageCreateParamsBase
from google.genai import types as google
from openai.types.chat import (
    ChatCompletionAssistantMessageParam,
    ChatCompletionContentPartImageParam,
    ChatCompletionContentPartTextParam,
    ChatCompletionMessageFunctionToolCallParam,
    ChatCompletionSystemMessageParam,
    ChatCompletionToolMessageParam,
    ChatCompletionUserMessageParam,
)
from openai.types.chat.chat_completion_content_part_image_param import ImageURL
from openai.types.chat.chat_completion_content_part_param import File, FileFile
from openai.types.chat.completion_create_params import CompletionCreateParamsBase
from openai.types.responses import (
    EasyInputMessageParam,
    FunctionToolParam,
    ResponseFunctionToolCallParam,
    ResponseInputFileParam,
    ResponseInputImageParam,
    ResponseInputTextParam,
    ResponseTextConfigParam,
)
from openai.types.responses.response_create_params import ResponseCreateParamsBase
from openai.types.responses.response_input_item_param import FunctionCallOutput
from openai.types.shared_params import FunctionDefinition, Reasoning

from chargehand.models.contract import Dialect

# The place of an object in the base request of a dialect, and its type in the official client.
PLACES: dict[Dialect, dict[str, Any]] = {
    "openai": {
        "": CompletionCreateParamsBase,
        "messages.0": ChatCompletionSystemMessageParam,
        "messages.1": ChatCompletionUserMessageParam,
        "messages.1.content.0": ChatCompletionContentPartTextParam,
        "messages.1.content.1": ChatCompletionContentPartImageParam,
        "messages.1.content.1.image_url": ImageURL,
        "messages.1.content.2": File,
        "messages.1.content.2.file": FileFile,
        "messages.2": ChatCompletionAssistantMessageParam,
        "messages.2.tool_calls.0": ChatCompletionMessageFunctionToolCallParam,
        "messages.3": ChatCompletionToolMessageParam,
        "tools.0.function": FunctionDefinition,
    },
    "responses": {
        "": ResponseCreateParamsBase,
        "input.0": EasyInputMessageParam,
        "input.0.content.0": ResponseInputTextParam,
        "input.0.content.1": ResponseInputImageParam,
        "input.0.content.2": ResponseInputFileParam,
        "input.2": ResponseFunctionToolCallParam,
        "input.3": FunctionCallOutput,
        "tools.0": FunctionToolParam,
        "reasoning": Reasoning,
        "text": ResponseTextConfigParam,
    },
    "anthropic": {
        "": MessageCreateParamsBase,
        "messages.0": UserMessageParam,
        "messages.0.content.0": TextBlockParam,
        "messages.0.content.1": ImageBlockParam,
        "messages.0.content.1.source": Base64ImageSourceParam,
        "messages.0.content.2": DocumentBlockParam,
        "messages.1.content.1": ToolUseBlockParam,
        "messages.2.content.0": ToolResultBlockParam,
        "tools.0": ToolParam,
        "tool_choice": ToolChoiceAutoParam,
        "output_config": OutputConfigParam,
        "output_config.format": JSONOutputFormatParam,
        "thinking": ThinkingConfigEnabledParam,
    },
    "gemini": {
        "generationConfig": google.GenerationConfig,
        "generationConfig.thinkingConfig": google.ThinkingConfig,
        "contents.0": google.Content,
        "contents.0.parts.0": google.Part,
        "contents.0.parts.1.inlineData": google.Blob,
        "contents.1.parts.1.functionCall": google.FunctionCall,
        "contents.2.parts.0.functionResponse": google.FunctionResponse,
        "tools.0.functionDeclarations.0": google.FunctionDeclaration,
        "toolConfig": google.ToolConfig,
        "toolConfig.functionCallingConfig": google.FunctionCallingConfig,
    },
}
# Fields that conflict with fields of the base: a limit in the other spelling, the other option of a choice.
MORE: dict[Dialect, list[tuple[str, Any]]] = {
    "openai": [(f"a_field_{n}", 1) for n in range(2)]
    + [("thinking", {"type": "enabled", "budget_tokens": 5_000})],
    "responses": [],
    "anthropic": [
        (name, sample)
        for name, sample in (("context_management", {"edits": [{"type": "clear_x"}]}), ("speed", "fast"))
        if name in beta_messages.MessageCreateParamsBase.__annotations__
    ]
    + [("thinking", {"type": "adaptive", "display": "summarized"})] * bool(ThinkingConfigAdaptiveParam),
    "gemini": [("safetySettings", [{"category": "c"}]), ("cachedContent", "x"), ("labels", {"a": "b"})],
}
