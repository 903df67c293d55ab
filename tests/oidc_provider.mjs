// A certified OpenID Connect provider (npm `oidc-provider`) for tests: node oidc_provider.mjs PACKAGE PORT SERVER.
// Its people and their groups are in the file PEOPLE (JSON), read at each sign-in; SERVER is our address.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [packageDirectory, port, server, people] = process.argv.slice(2);
const { Provider } = await import(pathToFileURL(`${packageDirectory}/lib/index.js`).href);
const issuer = `http://127.0.0.1:${port}`;
const at = `${server}/api/v1/sign-in/company`;

const provider = new Provider(issuer, {
  clients: [
    {
      client_id: "chargehand",
      client_secret: "a secret of tests: +/%",
      redirect_uris: [`${at}/callback`],
      post_logout_redirect_uris: [`${server}/login`],
      backchannel_logout_uri: `${at}/logout`,
      backchannel_logout_session_required: true,
      response_types: ["code"],
      grant_types: ["authorization_code"],
    },
  ],
  claims: { openid: ["sub"], profile: ["preferred_username", "groups"], email: ["email", "email_verified"] },
  cookies: { keys: ["a key of tests"] },
  features: { devInteractions: { enabled: true }, backchannelLogout: { enabled: true } },
  // The default refuses addresses of this machine.
  fetch: (url, { dispatcher, ...options }) => globalThis.fetch(url, options),
  findAccount: (context, id) => ({
    accountId: id,
    claims: () => ({ sub: id, preferred_username: id, ...JSON.parse(readFileSync(people, "utf8"))[id] }),
  }),
  pkce: { required: () => true },
});
provider.on("server_error", (context, error) => console.error(error));
provider.listen(Number(port), "127.0.0.1", () => console.log("ready"));
