import { useRouter, type ErrorComponentProps } from "@tanstack/react-router";
import { ApiError } from "./api/client";
import { ErrorState } from "./design/states";

// As browsers and the build's own loader say that a part of the program did not come.
const NOT_LOADED = /preload css|dynamically imported module|module script/i;

/** Says why a page cannot be shown, and tries again. */
export function PageError({ error }: ErrorComponentProps) {
  const router = useRouter();
  if (!(error instanceof Error && NOT_LOADED.test(error.message))) return <ErrorState error={error} retry={() => void router.invalidate()} />;
  const why = new ApiError(0, "not_loaded", "This page could not be loaded.", "The server is away, or was updated meanwhile.");
  return <ErrorState error={why} retry={() => void reload()} />;
}

/** Loads everything anew, once the server answers: what did not come is asked for only once. */
async function reload(): Promise<void> {
  const answers = await fetch("/health").catch(() => null);
  if (answers) window.location.reload();
}
