// Loaded before the conformance suite: gives each of its requests the token, for it has no option of its own for that.
import { createRequire } from "node:module";
import process from "node:process";
const { Agent, setGlobalDispatcher } = createRequire(process.env.MCP_SUITE + "/")("undici");
const Authorization = "Bearer " + process.env.MCP_TOKEN;
const withToken = (dispatch) => (request, handler) => {
  const { headers } = request;
  let given;
  if (Array.isArray(headers)) given = [...headers, "Authorization", Authorization];
  else if (headers && typeof headers[Symbol.iterator] === "function") given = [...headers, ["Authorization", Authorization]];
  else given = { ...headers, Authorization };
  return dispatch({ ...request, headers: given }, handler);
};
setGlobalDispatcher(new Agent().compose(withToken));
