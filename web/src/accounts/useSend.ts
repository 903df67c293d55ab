import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { ApiError } from "../api/client";

/** Returns what asks the server for a change of accounts, and what came of it: lists that it makes old are read again. */
export function useSend() {
  const client = useQueryClient();
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  const send = async (change: () => Promise<void>) => {
    setBusy(true);
    setError("");
    try {
      await change();
      for (const key of ["tokens", "users", "access"]) void client.invalidateQueries({ queryKey: [key] });
    } catch (failure) {
      setError(failure instanceof ApiError ? `${failure.message} ${failure.hint}`.trim() : String(failure));
    }
    setBusy(false);
  };
  return { send, busy, error };
}
