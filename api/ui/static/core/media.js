// Whether the page is as narrow as a phone.
import { useEffect, useState } from "./preact.js";

const NARROW = "(max-width: 40rem)";

export function useNarrow() {
  const [narrow, setNarrow] = useState(() => matchMedia(NARROW).matches);
  useEffect(() => {
    const media = matchMedia(NARROW);
    const notify = () => setNarrow(media.matches);
    media.addEventListener("change", notify);
    return () => media.removeEventListener("change", notify);
  }, []);
  return narrow;
}
