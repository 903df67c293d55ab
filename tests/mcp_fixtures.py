"""The server that the MCP conformance suite expects, over our HTTP transport.

Usage: `python -m tests.mcp_fixtures TOKEN_FILE`. Names and texts are those of the suite
(https://github.com/modelcontextprotocol/conformance), which tests our transport: address, token, origins,
sessions, streams, progress, errors.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import sys
import warnings
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server

from chargehand.cli.terminal.interrupt import Stop, run_async
from chargehand.core.errors import RefusedError
from chargehand.mcp._calls import error_result
from chargehand.mcp.http import bound, parsed_address, serve_http, token_of, url_of

Context = ServerRequestContext[Any, Any]
PNG = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d494844520000000100000001080200000090775"
        "3de0000000c4944415408d763f8cfc000000301010018dd8db00000000049454e44ae426082"
    )
).decode()
WAV = base64.b64encode(b"RIFF$\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0@\x1f\0\0\x80>\0\0\2\0\x10\0data\0\0\0\0").decode()
PAUSE = 0.05
NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
TEXT = {"type": "string"}
SCHEMA_2020 = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": {"type": "object", "properties": {"street": TEXT, "city": TEXT}}},
    "properties": {"name": TEXT, "address": {"$ref": "#/$defs/address"}},
    "additionalProperties": False,
}
DEFAULTS = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    },
    "required": [],
}
ENUMS = {
    "type": "object",
    "properties": {
        "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
        "titledSingle": {
            "type": "string",
            "oneOf": [{"const": f"value{n}", "title": f"Option {n}"} for n in (1, 2, 3)],
        },
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": ["option1", "option2", "option3"]}},
        "titledMulti": {
            "type": "array",
            "items": {"anyOf": [{"const": f"value{n}", "title": f"Choice {n}"} for n in (1, 2, 3)]},
        },
    },
    "required": [],
}
USER = {"type": "object", "properties": {"username": TEXT, "email": TEXT}, "required": ["username", "email"]}
TOOLS = {
    "test_simple_text": NOTHING,
    "test_image_content": NOTHING,
    "test_audio_content": NOTHING,
    "test_embedded_resource": NOTHING,
    "test_multiple_content_types": NOTHING,
    "test_tool_with_logging": NOTHING,
    "test_tool_with_progress": NOTHING,
    "test_error_handling": NOTHING,
    "test_sampling": {"type": "object", "properties": {"prompt": TEXT}, "required": ["prompt"]},
    "test_elicitation": {"type": "object", "properties": {"message": TEXT}, "required": ["message"]},
    "test_elicitation_sep1034_defaults": NOTHING,
    "test_elicitation_sep1330_enums": NOTHING,
    "json_schema_2020_12_tool": SCHEMA_2020,
}
RESOURCES = {
    "test://static-text": types.TextResourceContents(
        uri="test://static-text", mime_type="text/plain", text="This is the content of the static text resource."
    ),
    "test://static-binary": types.BlobResourceContents(
        uri="test://static-binary", mime_type="image/png", blob=PNG
    ),
    "test://watched-resource": types.TextResourceContents(uri="test://watched-resource", text="watched"),
}
PROMPTS = {
    "test_simple_prompt": (),
    "test_prompt_with_arguments": ("arg1", "arg2"),
    "test_prompt_with_embedded_resource": ("resourceUri",),
    "test_prompt_with_image": (),
}


def text(said: str) -> types.TextContent:
    return types.TextContent(text=said)


def embedded(uri: str, mime: str, said: str) -> types.EmbeddedResource:
    return types.EmbeddedResource(resource=types.TextResourceContents(uri=uri, mime_type=mime, text=said))


CONTENT: dict[str, list[types.ContentBlock]] = {
    "test_simple_text": [text("This is a simple text response for testing.")],
    "test_image_content": [types.ImageContent(data=PNG, mime_type="image/png")],
    "test_audio_content": [types.AudioContent(data=WAV, mime_type="audio/wav")],
    "test_embedded_resource": [
        embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")
    ],
    "test_multiple_content_types": [
        text("Multiple content types test:"),
        types.ImageContent(data=PNG, mime_type="image/png"),
        embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
    ],
    "json_schema_2020_12_tool": [text("fine")],
}


async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    name, given = params.name, params.arguments or {}
    if name == "test_error_handling":
        return error_result(RefusedError("This tool intentionally returns an error for testing"))
    if name in CONTENT:
        return types.CallToolResult(content=CONTENT[name])
    return types.CallToolResult(content=[text(await said_by(context, name, given))])


async def said_by(context: Context, name: str, given: dict[str, Any]) -> str:
    session, request = context.session, context.request_id
    if name == "test_tool_with_logging":
        for line in ("Tool execution started", "Tool processing data", "Tool execution completed"):
            with warnings.catch_warnings(action="ignore"):  # the protocol deprecates logging
                await session.send_log_message("info", line, related_request_id=request)
            await asyncio.sleep(PAUSE)
        return "logged"
    if name == "test_tool_with_progress":
        for done in (0, 50, 100):
            await session.report_progress(done, 100)
            await asyncio.sleep(PAUSE)
        return "progressed"
    if name == "test_sampling":
        asked = types.SamplingMessage(role="user", content=text(given["prompt"]))
        with warnings.catch_warnings(action="ignore"):
            reply = await session.create_message([asked], max_tokens=100, related_request_id=request)
        assert isinstance(reply.content, types.TextContent)
        return f"LLM response: {reply.content.text}"
    schema = {"test_elicitation_sep1034_defaults": DEFAULTS, "test_elicitation_sep1330_enums": ENUMS}
    question = given.get("message", "Please fill this in")
    answer = await session.elicit_form(question, schema.get(name, USER), related_request_id=request)
    return f"Elicitation completed: action={answer.action}, content={answer.content}"


async def list_tools(context: Context, params: Any) -> types.ListToolsResult:
    return types.ListToolsResult(
        tools=[types.Tool(name=name, description=name, input_schema=schema) for name, schema in TOOLS.items()]
    )


async def list_resources(context: Context, params: Any) -> types.ListResourcesResult:
    return types.ListResourcesResult(
        resources=[types.Resource(uri=uri, name=uri, description="a fixture") for uri in RESOURCES]
    )


async def list_templates(context: Context, params: Any) -> types.ListResourceTemplatesResult:
    template = types.ResourceTemplate(uri_template="test://template/{id}/data", name="template")
    return types.ListResourceTemplatesResult(resource_templates=[template])


async def read(context: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    if params.uri in RESOURCES:
        return types.ReadResourceResult(contents=[RESOURCES[params.uri]])
    part = params.uri.split("/")[-2]
    said = f'{{"id":"{part}","templateTest":true,"data":"Data for ID: {part}"}}'
    content = types.TextResourceContents(uri=params.uri, mime_type="application/json", text=said)
    return types.ReadResourceResult(contents=[content])


async def list_prompts(context: Context, params: Any) -> types.ListPromptsResult:
    return types.ListPromptsResult(
        prompts=[
            types.Prompt(
                name=name,
                description=name,
                arguments=[types.PromptArgument(name=each, description=each, required=True) for each in arguments],
            )
            for name, arguments in PROMPTS.items()
        ]
    )


async def get_prompt(context: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
    given = params.arguments or {}
    blocks: dict[str, list[types.ContentBlock]] = {
        "test_simple_prompt": [text("This is a simple prompt for testing.")],
        "test_prompt_with_arguments": [
            text(f"Prompt with arguments: arg1='{given.get('arg1')}', arg2='{given.get('arg2')}'")
        ],
        "test_prompt_with_embedded_resource": [
            embedded(
                given.get("resourceUri", "test://none"), "text/plain", "Embedded resource content for testing."
            ),
            text("Please process the embedded resource above."),
        ],
        "test_prompt_with_image": [
            types.ImageContent(data=PNG, mime_type="image/png"),
            text("Please analyze the image above."),
        ],
    }
    messages = [types.PromptMessage(role="user", content=block) for block in blocks[params.name]]
    return types.GetPromptResult(messages=messages)


async def complete(context: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
    return types.CompleteResult(completion=types.Completion(values=["paris", "park"], total=2, has_more=False))


async def nothing(context: Context, params: Any) -> types.EmptyResult:
    return types.EmptyResult()


def fixture_server() -> Server[Any]:
    with warnings.catch_warnings(action="ignore"):  # the protocol deprecates logging
        return Server(
            "fixtures",
            version="1",
            on_list_tools=list_tools,
            on_call_tool=call_tool,
            on_list_resources=list_resources,
            on_list_resource_templates=list_templates,
            on_read_resource=read,
            on_subscribe_resource=nothing,
            on_unsubscribe_resource=nothing,
            on_list_prompts=list_prompts,
            on_get_prompt=get_prompt,
            on_completion=complete,
            on_set_logging_level=nothing,
        )


def main(token_file: Path) -> None:
    with contextlib.closing(bound(parsed_address("127.0.0.1:0"))) as listening:
        token = token_of(token_file)

        def announce() -> None:
            print(url_of(listening), flush=True)

        async def serve(stop: Stop) -> None:
            await serve_http(fixture_server(), listening, token=token, stop=stop, announce=announce)

        run_async(serve)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
