import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { ApiError } from "../api/client";

/** Returns a function that sends an account change, and its state. Lists that the change affects are reloaded. */
export function useSend() {
  const client = useQueryClient();
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  const send = async (change: () => Promise<void>) => {
    setBusy(true);
    setError("");
    try {
      await change();
      for (const key of ["tokens", "users", "access", "factors"]) void client.invalidateQueries({ queryKey: [key] });
    } catch (failure) {
      setError(failure instanceof ApiError ? `${failure.message} ${failure.hint}`.trim() : (failure as Error).message);
    }
    setBusy(false);
  };
  return { send, busy, error };
}
