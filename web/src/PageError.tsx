import { useRouter, type ErrorComponentProps } from "@tanstack/react-router";
import { ApiError } from "./api/client";
import { ErrorState } from "./design/states";

// The messages of browsers and of the build's loader when a chunk fails to load.
const NOT_LOADED = /preload css|dynamically imported module|module script/i;

/** Explains why a page cannot be shown, and offers a retry. */
export function PageError({ error }: ErrorComponentProps) {
  const router = useRouter();
  if (!(error instanceof Error && NOT_LOADED.test(error.message))) return <ErrorState error={error} retry={() => void router.invalidate()} />;
  const why = new ApiError(0, "not_loaded", "This page could not be loaded.", "The server is away, or was updated meanwhile.");
  return <ErrorState error={why} retry={() => void reload()} />;
}

/** Reloads the whole page once the server answers: a failed chunk is not requested a second time. */
async function reload(): Promise<void> {
  const answers = await fetch("/health").catch(() => null);
  if (answers) window.location.reload();
}
