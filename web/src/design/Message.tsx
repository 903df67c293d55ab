import { plainText } from "../format";

/** A message of the product: text between backticks is shown as code. */
export function Message({ text }: { text: string }) {
  const parts = plainText(text).split("`");
  // With an unpaired backtick the text is shown unchanged.
  if (parts.length % 2 === 0) return parts.join("`");
  return parts.map((part, at) => (at % 2 === 1 ? <code key={at}>{part}</code> : part));
}
